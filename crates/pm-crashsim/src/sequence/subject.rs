//! The user's part: the structure under test, and its expected behaviour.

use crate::SimPmem;
use core::fmt;
use std::sync::Arc;

/// A persistent structure under test: its creation, opening, operations and state.
///
/// The value selects the variant to test (a capacity, a planted bug); most are unit structs.
pub trait Subject: Sync {
    /// An operation on the structure, with its arguments.
    type Op: Clone + fmt::Debug + Send + Sync;
    /// Everything that a user of the structure can see, as plain values.
    type State: Clone + PartialEq + fmt::Debug + Send + Sync;
    /// The structure, opened.
    type Store;
    /// The error of its operations. Any error fails the test: an operation that may be refused (for lack of space,
    /// for example) returns `Ok`, and [`Oracle::expect`] leaves the state unchanged.
    type Error: fmt::Display;

    /// Formats the region, which is all zeros; returns the structure. Unless implemented, nothing is formatted: the structure is
    /// opened on zeros. No crash of it is tried; [`model`](crate::model) tests that.
    ///
    /// # Errors
    /// Those of the structure.
    fn create(&self, pmem: Arc<SimPmem>) -> Result<Self::Store, Self::Error> {
        self.open(pmem)
    }

    /// Opens the structure and recovers it.
    ///
    /// # Errors
    /// Those of the structure.
    fn open(&self, pmem: Arc<SimPmem>) -> Result<Self::Store, Self::Error>;

    /// Applies one operation, until it returns to the user.
    ///
    /// # Errors
    /// Those of the structure.
    fn apply(&self, store: &mut Self::Store, op: &Self::Op) -> Result<(), Self::Error>;

    /// Reads the whole state.
    ///
    /// # Errors
    /// Those of the structure, corruption above all.
    fn observe(&self, store: &Self::Store) -> Result<Self::State, Self::Error>;

    /// Whether the return of this operation promises that it and all earlier ones are durable. Matters to [`Durability::Buffered`] only.
    fn is_sync(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }
}

/// The expected behaviour of a [`Subject`], in the simplest possible code: a map for a tree, a `Vec` for a log.
pub trait Oracle: Subject {
    /// The state of the structure right after [`Subject::create`].
    fn initial(&self) -> Self::State;

    /// Applies the operation to the state.
    fn expect(&self, state: &mut Self::State, op: &Self::Op);
}

/// The promise of a structure for operations that had returned before a crash.
///
/// # Source
/// Izraelevitz, Mendes, Scott: "Linearizability of Persistent Memory Objects Under a Full-System-Crash Failure
/// Model" (DISC'16), for sequential histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Durable linearizability: every operation that had returned is durable, and the one in flight is atomic.
    #[default]
    Strict,
    /// Buffered durable linearizability: the state is that after a prefix of the operations that had begun, no
    /// shorter than up to the last completed [sync operation](Subject::is_sync).
    ///
    /// A crash may lose the tail of the operations since the last recovery, but not the state that recovery found: its return counts as a sync. A
    /// crash inside recovery may select any allowed prefix, because no caller has seen another.
    Buffered,
}
