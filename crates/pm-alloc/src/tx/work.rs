//! What a transaction collects until it commits.

use crate::log::Writes;
use crate::space::{Freeing, Reservation};
use core::ops::Range;
use pm_core::RootWrite;

/// Reservations, bytes and the like that stay in memory for a thread's next transaction: what is more is given back.
const KEPT_MAX: usize = 1024;

/// Lists that are empty between two transactions, and keep their room, so that most transactions allocate nothing.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) writes: Writes,
    /// Extents that new blocks are carved of.
    pub(super) reservations: Vec<Reservation>,
    /// The payloads of new blocks.
    pub(super) fresh: Vec<Range<u64>>,
    pub(super) freeing: Vec<Freeing>,
    pub(super) roots: Vec<StagedRoot>,
}

/// A root that the transaction sets or removes.
#[derive(Debug)]
pub(super) struct StagedRoot {
    pub(super) name: String,
    /// Offset, length and layout of its value; `None` to remove it.
    pub(super) target: Option<(u64, u64, u64)>,
    /// What it will look like, if there is anything to do. Its slot may become another one's.
    pub(super) write: Option<RootWrite>,
}

impl Work {
    /// Whether it is small enough to be kept.
    #[inline]
    pub(super) fn is_kept(&self) -> bool {
        let Self { writes, reservations, fresh, freeing, roots } = self;
        let most = [reservations.capacity(), fresh.capacity(), freeing.capacity(), roots.capacity()];
        most.into_iter().all(|room| room <= KEPT_MAX / 8) && writes.capacity() <= 64 * KEPT_MAX
    }

    /// With nothing in it. What was reserved or half freed the transaction has settled.
    #[inline]
    pub(super) fn emptied(mut self: Box<Self>) -> Box<Self> {
        let Self { writes, reservations, fresh, freeing, roots } = &mut *self;
        writes.clear();
        reservations.clear();
        fresh.clear();
        freeing.clear();
        roots.clear();
        self
    }
}
