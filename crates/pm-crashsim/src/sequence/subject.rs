//! What a user writes: the structure under test, and what is expected of it.

use crate::SimPmem;
use core::fmt;
use std::sync::Arc;

/// A persistent structure under test: how it is made, opened, used and looked at.
///
/// The value itself says which variant is tested (a capacity, a planted bug); most are unit structs.
pub trait Subject: Sync {
    /// An operation on the structure, with its arguments.
    type Op: Clone + fmt::Debug + Send + Sync;
    /// All that a user of the structure can see, as plain values.
    type State: Clone + PartialEq + fmt::Debug + Send + Sync;
    /// The structure, opened.
    type Store;
    /// What its operations fail with. Any error fails the test: an operation that may be refused (for lack of room,
    /// say) returns `Ok`, and [`Oracle::expect`] leaves the state as it was.
    type Error: fmt::Display;

    /// Formats the region, which is all zeros; returns the structure. Unless implemented, nothing is formatted: the structure is
    /// opened on zeros. No crash of it is tried; [`model`](crate::model) tests that.
    ///
    /// # Errors
    /// Those of the structure.
    fn create(&self, pmem: Arc<SimPmem>) -> Result<Self::Store, Self::Error> {
        self.open(pmem)
    }

    /// Opens the structure, with whatever recovery that takes.
    ///
    /// # Errors
    /// Those of the structure.
    fn open(&self, pmem: Arc<SimPmem>) -> Result<Self::Store, Self::Error>;

    /// Carries out one operation, to its return to the user.
    ///
    /// # Errors
    /// Those of the structure.
    fn apply(&self, store: &mut Self::Store, op: &Self::Op) -> Result<(), Self::Error>;

    /// Reads everything.
    ///
    /// # Errors
    /// Those of the structure: contents that it finds corrupt, above all.
    fn observe(&self, store: &Self::Store) -> Result<Self::State, Self::Error>;

    /// Whether the return of this operation promises that all before it, and itself, are durable. Matters to
    /// [`Durability::Buffered`] only.
    fn is_sync(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }
}

/// What is expected of a [`Subject`], in the plainest code that can say it: a map for a tree, a `Vec` for a log.
pub trait Oracle: Subject {
    /// The state of the structure right after [`Subject::create`].
    fn initial(&self) -> Self::State;

    /// Changes the state as the operation does.
    fn expect(&self, state: &mut Self::State, op: &Self::Op);
}

/// What a structure promises of operations that had returned before a crash.
///
/// # Source
/// Izraelevitz, Mendes, Scott: "Linearizability of Persistent Memory Objects Under a Full-System-Crash Failure
/// Model" (DISC'16), for sequential histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Durable linearizability: every operation that had returned is there, whole. The one in flight is there whole
    /// or not at all.
    #[default]
    Strict,
    /// Buffered durable linearizability: what is there is a prefix of the operations that had begun, whole, and no
    /// shorter than up to the last [sync operation](Subject::is_sync) that had returned.
    ///
    /// A crash may lose the tail of what ran since the last recovery, and never what that recovery had found: once
    /// it has returned, its state is as after a sync. A crash inside of recovery may choose any allowed prefix, for
    /// no caller had seen the other.
    Buffered,
}
