//! The life of a transaction: from its first line to its commit, or to nothing.

use super::nesting::Stay;
use super::work::Work;
use crate::error::TxError;
use crate::format::Lsn;
use crate::heap::Heap;
use crate::log::LaneGuard;
use crate::space::Freeing;
use core::fmt;
use core::marker::PhantomData;
use pm_core::{Pmem, Region};

/// A transaction on the heap of `'p`. Made by [`Heap::transaction`].
///
/// What it writes is kept in DRAM until it commits, and it reads what it wrote. More than 96 bytes go into a new block
/// at once, since nobody knows of it. What is 2 KiB long or longer, unless [`HeapOptions::in_place_from_bytes`] says
/// otherwise, is changed in place, behind undo entries.
///
/// [`HeapOptions::in_place_from_bytes`]: crate::HeapOptions::in_place_from_bytes
pub struct Tx<'p, P: Pmem = Region> {
    pub(super) heap: &'p Heap<P>,
    pub(super) work: &'p mut Work,
    /// Taken for the first long write in place, or to commit.
    pub(super) lane: Option<LaneGuard<'p>>,
    /// Whether something was stored in new blocks, and is not fenced.
    pub(super) is_in_flight: bool,
    durability: Durability,
    brand: PhantomData<fn(&'p ()) -> &'p ()>,
}

/// When a committed transaction becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Before the call returns.
    #[default]
    Immediate,
    /// With the next commit of any thread, or when the heap is closed. Applies to a transaction that only changes long values in
    /// place; every other transaction is durable before the call returns.
    ///
    /// A crash before that rolls the transaction back as a whole, together with every transaction after it.
    Deferred,
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
    /// What `f` returns; or why the transaction could not be made durable: it needs more than half of a lane, say. The
    /// heap is as it was before then, but for a failed fence, after which the next opening knows. [`TxError::Nested`]
    /// when this thread is in a transaction on this heap already.
    ///
    /// # Durability
    /// When it returns `Ok`, everything is durable. Costs one fence, and one line for up to 48 bytes or three words,
    /// besides the lines changed; a fence more when more than 96 bytes, or zeroes, were written into a new block; with
    /// a change in place of 2 KiB or more, three fences, or four if it changes other data, too. One that changes nothing costs nothing.
    ///
    /// # Source
    /// PMFS 3.2 for the entries of the log; `docs/adr/0007-one-fence-per-transaction.md` for how it needs one fence only.
    pub fn transaction<R, E: From<TxError>>(
        &self,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.transaction_with(Durability::Immediate, f)
    }

    /// Like [`transaction`](Self::transaction), durable as `durability` states.
    ///
    /// # Errors
    /// As for [`transaction`](Self::transaction).
    ///
    /// # Durability
    /// With [`Durability::Deferred`], a transaction that only changes long values in place costs one fence less, and may be rolled
    /// back by a crash.
    ///
    /// # Source
    /// PMFS 3.2, the optional barrier behind the commit record.
    pub fn transaction_with<R, E: From<TxError>>(
        &self,
        durability: Durability,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut stay = Stay::begin(core::ptr::from_ref(self).addr())?;
        // Dropped without a commit, by an error or a panic, it takes everything back.
        let mut tx = Tx::new(self, stay.work(), durability);
        let result = f(&mut tx)?;
        tx.commit()?;
        Ok(result)
    }
}

impl<'p, P: Pmem> Tx<'p, P> {
    const fn new(heap: &'p Heap<P>, work: &'p mut Work, durability: Durability) -> Self {
        Self { heap, work, lane: None, is_in_flight: false, durability, brand: PhantomData }
    }

    fn commit(mut self) -> Result<(), TxError> {
        let Work { writes, reservations, freeing, roots, .. } = &mut *self.work;
        let has_roots = !roots.is_empty();
        for reservation in reservations.iter() {
            let (inner, front) = reservation.inner_and_front();
            inner.for_each(|(offset, word)| writes.header_ahead(offset, word));
            front.into_iter().for_each(|(offset, word)| writes.header(offset, word));
        }
        for (offset, word) in freeing.iter().filter_map(Freeing::header) {
            writes.header(offset, word);
        }
        if writes.is_empty() && !has_roots && self.lane.is_none() {
            // Behind the cut of a chain a block is freed in DRAM only.
            for freeing in freeing.drain(..) {
                self.heap.space.finish_free(freeing, Lsn::ZERO);
            }
            return Ok(());
        }
        if self.is_in_flight {
            // Before the entries are stored: they may become durable at once, and publish what is in the blocks.
            self.heap.log.fence(&self.heap.pmem())?;
        }
        self.lane();
        // After the lane, and only until the commit is over: no transaction waits for a lane with the lock of the roots held.
        let change = self.write_roots()?;
        let Work { writes, reservations, freeing, .. } = &mut *self.work;
        let lane = self.lane.get_or_insert_with(|| LaneGuard::take(&self.heap.log));
        let committed = match self.durability == Durability::Deferred && writes.is_empty() {
            true => lane.commit_lazy(&self.heap.pmem()),
            false => lane.commit(&self.heap.pmem(), writes),
        };
        // After a failed fence the roots stay hidden: which of them a crash would leave is not known. Else all of them are durable, or
        // nothing was stored.
        if let Some(change) = change
            && (committed.is_ok() || self.heap.log.check().is_ok())
        {
            change.complete();
        }
        let lsn = committed?;
        self.lane = None;
        for reservation in reservations.drain(..) {
            self.heap.space.settle(reservation, lsn);
        }
        for freeing in freeing.drain(..) {
            self.heap.space.finish_free(freeing, lsn);
        }
        Ok(())
    }

    pub(super) fn lane(&mut self) -> &mut LaneGuard<'p> {
        let heap = self.heap;
        self.lane.get_or_insert_with(|| LaneGuard::take(&heap.log))
    }
}

impl<P: Pmem> Drop for Tx<'_, P> {
    /// Takes back what did not commit. After a commit there is nothing left.
    fn drop(&mut self) {
        if let Some(mut lane) = self.lane.take() {
            // If this fails, the log says so to everyone who comes after, and recovery takes it back.
            lane.roll_back(&self.heap.pmem()).unwrap_or_default();
        }
        // After a failed fence the transaction may be durable, and its blocks allocated.
        let is_known = self.heap.log.check().is_ok();
        for reservation in self.work.reservations.drain(..) {
            if is_known {
                self.heap.space.return_unused(reservation);
            } else {
                self.heap.space.abandon(reservation);
            }
        }
        for freeing in self.work.freeing.drain(..) {
            self.heap.space.cancel_free(freeing);
        }
    }
}

impl<P: Pmem> fmt::Debug for Tx<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("writes", &self.work.writes)
            .field("fresh", &self.work.fresh)
            .field("freeing", &self.work.freeing.len())
            .finish_non_exhaustive()
    }
}
