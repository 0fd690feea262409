//! The life of a transaction: from its first line to its commit, or to nothing.

use super::nesting::Stay;
use crate::error::TxError;
use crate::heap::Heap;
use crate::log::{LaneGuard, Writes};
use crate::space::{Freeing, Reservation};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use pm_core::{Pmem, Region, RootWrite};
use std::sync::MutexGuard;

/// A transaction on the heap of `'p`. Made by [`Heap::transaction`].
///
/// What it writes is kept in DRAM until it commits, and it reads what it wrote. New blocks are written at once, since nobody
/// knows of them. A block longer than a page is changed in place, behind undo entries.
pub struct Tx<'p, P: Pmem = Region> {
    pub(super) heap: &'p Heap<P>,
    pub(super) writes: Writes,
    /// Taken for the first long write in place, or to commit.
    pub(super) lane: Option<LaneGuard<'p>>,
    /// Extents that new blocks are carved of.
    pub(super) reservations: Vec<Reservation>,
    /// The payloads of new blocks.
    pub(super) fresh: Vec<Range<u64>>,
    /// Whether something was stored in new blocks, and is not fenced.
    pub(super) is_in_flight: bool,
    pub(super) freeing: Vec<Freeing>,
    pub(super) roots: Vec<RootWrite>,
    pub(super) roots_lock: Option<MutexGuard<'p, ()>>,
    is_lazy: bool,
    brand: PhantomData<fn(&'p ()) -> &'p ()>,
}

impl<P: Pmem> Heap<P> {
    /// Runs `f` as one transaction: all that it does to the heap happens, when it returns `Ok`, or nothing of it does, when it
    /// returns an error, panics, or the power fails.
    ///
    /// Who changes what at the same time is for the program to order, with locks or otherwise: a transaction neither
    /// waits for another one that touches the same data nor notices it. The order in which they commit is then the order
    /// in which crashes see them.
    ///
    /// # Errors
    /// What `f` returns; or why the transaction could not be made durable. The heap is as it was before then, but for a failed
    /// fence, after which the next opening knows.
    ///
    /// # Durability
    /// When it returns `Ok`, everything is durable. Costs one fence, and one line for up to 48 bytes or three words, besides
    /// the lines changed; a fence more when something was written into new blocks; with a change in place of more than a
    /// page, three fences. One that changes nothing costs nothing.
    ///
    /// # Source
    /// PMFS 3.2 for the entries of the log; `docs/adr/0007-one-fence-per-transaction.md` for how it needs one fence only.
    pub fn transaction<R, E: From<TxError>>(
        &self,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        let _stay = Stay::begin(core::ptr::from_ref(self).addr())?;
        // Dropped without a commit, by an error or a panic, it takes everything back.
        let mut tx = Tx::new(self);
        let result = f(&mut tx)?;
        tx.commit()?;
        Ok(result)
    }
}

impl<'p, P: Pmem> Tx<'p, P> {
    fn new(heap: &'p Heap<P>) -> Self {
        Self {
            heap,
            writes: Writes::new(),
            lane: None,
            reservations: Vec::new(),
            fresh: Vec::new(),
            is_in_flight: false,
            freeing: Vec::new(),
            roots: Vec::new(),
            roots_lock: None,
            is_lazy: false,
            brand: PhantomData,
        }
    }

    /// Does not wait for the commit's last fence, if this transaction changes nothing but long values in place. The next transaction
    /// of anyone waits for it.
    ///
    /// # Durability
    /// A crash right after the transaction may take it back, whole; but then nothing is left of any transaction after it.
    ///
    /// # Source
    /// PMFS 3.2, the optional barrier behind the commit record.
    pub const fn lazily(&mut self) {
        self.is_lazy = true;
    }

    fn commit(mut self) -> Result<(), TxError> {
        for (offset, word) in self.reservations.iter().flat_map(Reservation::headers) {
            self.writes.word(offset, word);
        }
        for (offset, word) in self.freeing.iter().map(Freeing::header) {
            self.writes.word(offset, word);
        }
        for root in &self.roots {
            self.writes.bytes(root.offset(), root.bytes());
        }
        if self.writes.is_empty() && self.lane.is_none() {
            return Ok(());
        }
        if self.is_in_flight {
            // Before the entries are stored: they may become durable at once, and publish what is in the blocks.
            self.heap.pmem().fence()?;
        }
        let mut lane = self.lane.take().unwrap_or_else(|| self.heap.log.lane());
        let committed = match self.is_lazy && self.writes.is_empty() {
            true => lane.commit_lazily(self.heap.pmem()),
            false => lane.commit(self.heap.pmem(), &self.writes),
        };
        let stamp = match committed {
            Ok(stamp) => stamp,
            Err(error) => {
                self.lane = Some(lane);
                return Err(error.into());
            }
        };
        drop(lane);
        for reservation in self.reservations.drain(..) {
            self.heap.space.settle(reservation, stamp);
        }
        for freeing in self.freeing.drain(..) {
            self.heap.space.finish_free(freeing, stamp);
        }
        Ok(())
    }

    pub(super) fn lane(&mut self) -> &mut LaneGuard<'p> {
        let heap = self.heap;
        self.lane.get_or_insert_with(|| heap.log.lane())
    }
}

impl<P: Pmem> Drop for Tx<'_, P> {
    /// Takes back what did not commit. After a commit there is nothing left.
    fn drop(&mut self) {
        if let Some(mut lane) = self.lane.take() {
            // If this fails, the log says so to everyone who comes after, and recovery takes it back.
            lane.roll_back(self.heap.pmem()).unwrap_or_default();
        }
        for reservation in self.reservations.drain(..) {
            self.heap.space.return_unused(reservation);
        }
        for freeing in self.freeing.drain(..) {
            self.heap.space.cancel_free(freeing);
        }
    }
}

impl<P: Pmem> fmt::Debug for Tx<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("writes", &self.writes)
            .field("fresh", &self.fresh)
            .field("freeing", &self.freeing.len())
            .finish_non_exhaustive()
    }
}
