//! One block and one link to it, changed together: what most programs do most, without a transaction around it.

use super::View;
use super::blocks::LOGGED_UP_TO_BYTES;
use super::links::link_to;
use super::nesting::outside;
use crate::error::TxError;
use crate::format::LINE_BYTES;
use crate::layout::Layout;
use crate::log::LaneGuard;
use core::mem::size_of;
use pm_core::{InPool, Link, Pmem, bytes_of};

/// A link that leads nowhere.
const NULL: u64 = 0;

impl<'p, P: Pmem> View<'p, P> {
    /// Allocates a block with `value` in it, and links `slot` to it, in one step.
    ///
    /// # Errors
    /// When there is no room, or `slot` [holds a link](TxError::Occupied) already; within a transaction on the same
    /// heap, which has calls of its own for this. Nothing has changed then. When a fence fails, as
    /// [`Heap::transaction`](crate::Heap::transaction).
    ///
    /// # Durability
    /// When it returns, all of it is durable; a crash before leaves all of it, or a free block and a slot that is null. Costs the
    /// lines of the value, of the block's header, of the header behind it if the block was cut off a longer one, and of the slot;
    /// one of the log, and two fences. If the value has 96 bytes or less, up to three of the log, and one fence.
    ///
    /// # Source
    /// PMDK's `pmemobj_alloc`, which does the same.
    pub fn alloc_and_link<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        value: &T,
    ) -> Result<Link<'p, T>, TxError> {
        let bytes = bytes_of(value);
        self.publish(slot, bytes.len() as u64, Some(bytes))
    }

    /// As [`alloc_and_link`](Self::alloc_and_link), with room for `count` values, to be filled later: what it holds is what was there
    /// before.
    ///
    /// # Errors
    /// As [`alloc_and_link`](Self::alloc_and_link).
    ///
    /// # Durability
    /// As [`alloc_and_link`](Self::alloc_and_link), but for the value, for one fence.
    pub fn alloc_uninit_and_link<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        count: u64,
    ) -> Result<Link<'p, T>, TxError> {
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        self.publish(slot, bytes, None)
    }

    /// Frees the block that `slot` links to, and makes the slot null, in one step.
    ///
    /// # Errors
    /// When the slot is null, or links to no block that can be freed; within a transaction on the same heap. Nothing has changed
    /// then. When a fence fails, as [`Heap::transaction`](crate::Heap::transaction).
    ///
    /// # Durability
    /// When it returns, both are durable; a crash before leaves both, or neither. Costs the lines of the block's header and of the
    /// slot, one of the log, and one fence.
    ///
    /// # Source
    /// PMDK's `pmemobj_free`, which does the same.
    pub fn unlink_and_free<T: InPool<'p>>(&self, slot: Link<'p, Link<'p, T>>) -> Result<(), TxError> {
        let heap = self.heap;
        outside(core::ptr::from_ref(heap).addr())?;
        let slot = heap.check_link(slot, 1)?;
        let pmem = &heap.pmem();
        let payload = pmem.load_u64(slot);
        if payload == NULL {
            return Err(pm_core::PlaceError::Null.into());
        }
        // Now: taking a lock waits for the fence of whatever this thread committed last.
        pmem.prefetch(Layout::header_of(payload.max(LINE_BYTES)));
        let mut lane = LaneGuard::take(&heap.log);
        if let Some(held) = heap.space.hold_freeing(&lane, pmem, payload)? {
            let lsn = lane.commit_words(pmem, &[held.header(), (slot, NULL)])?;
            held.settle(lsn);
            return Ok(());
        }
        drop(lane);
        heap.transaction(|tx| {
            tx.free_block(payload)?;
            tx.work.writes.word(slot, NULL);
            Ok(())
        })
    }

    /// Allocates a block of so many bytes, stores `contents` in it, if any, and links `slot` to it.
    fn publish<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        bytes: u64,
        contents: Option<&[u8]>,
    ) -> Result<Link<'p, T>, TxError> {
        outside(core::ptr::from_ref(self.heap).addr())?;
        let slot = self.vacant(slot)?;
        // Short contents go through the log, and other alignments than a line's are no value's, but for those that say so.
        let is_long = contents.is_none_or(|contents| contents.len() > LOGGED_UP_TO_BYTES);
        let lines = Layout::lines_for(bytes).filter(|_| is_long && align_of::<T>() <= 64);
        if let Some(lines) = lines
            && let Some(payload) = self.publish_own(slot, lines, contents)?
        {
            return Ok(link_to(payload));
        }
        // The same as a transaction, for what is not in this thread's arena, or is longer than a chunk.
        self.heap.transaction(|tx| {
            let payload = tx.reserve(bytes, align_of::<T>() as u64)?;
            if let Some(contents) = contents {
                tx.store_fresh(payload, contents)?;
            }
            tx.work.writes.word(slot, payload);
            Ok(link_to(payload))
        })
    }

    /// The same with a block of this thread's arena, by one commit of up to three words. `None`, and nothing done, if that has no such block.
    #[inline]
    fn publish_own(&self, slot: u64, lines: u64, contents: Option<&[u8]>) -> Result<Option<u64>, TxError> {
        let (space, log, pmem) = (&self.heap.space, &self.heap.log, &self.heap.pmem());
        log.check_open()?;
        let checkpoint_lsn = log.recent_checkpoint_lsn();
        let mut lane = LaneGuard::take(log);
        let Some(held) = space.hold_block(&lane, pmem, lines, checkpoint_lsn, contents.is_some()) else {
            return Ok(None);
        };
        let payload = held.payload();
        if let Some(contents) = contents {
            // With the block held: another transaction may have given it back as it failed.
            log.check()?;
            pmem.store(payload, contents);
            pmem.flush(payload, contents.len() as u64);
            // Before the entry is stored: it may become durable at once, and publish what is in the block.
            log.fence(pmem)?;
        }
        match held.rest() {
            Some(rest) => lane.commit_words_ahead(pmem, &[rest, (slot, payload), held.header()], 1)?,
            None => lane.commit_words(pmem, &[(slot, payload), held.header()])?,
        };
        held.settle();
        Ok(Some(payload))
    }

    /// Where a slot lies, if it holds no link.
    fn vacant<T: InPool<'p>>(&self, slot: Link<'p, Link<'p, T>>) -> Result<u64, TxError> {
        let slot = self.heap.check_link(slot, 1)?;
        match self.heap.pmem().load_u64(slot) {
            NULL => Ok(slot),
            linked => Err(TxError::Occupied { slot, linked }),
        }
    }
}
