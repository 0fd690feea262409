//! One block and one link to it, changed together: what most programs do most, without a transaction around it.

use super::nesting::outside;
use super::{Tx, View};
use crate::error::TxError;
use crate::format::LINE_BYTES;
use crate::layout::Layout;
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
    pub fn alloc_into<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        value: &T,
    ) -> Result<Link<'p, T>, TxError> {
        let bytes = bytes_of(value);
        if bytes.len() <= super::blocks::LOGGED_UP_TO_BYTES {
            return self.link_new(slot, |tx| {
                let payload = tx.reserve(bytes.len() as u64, align_of::<T>() as u64)?;
                tx.store_fresh(payload, bytes)?;
                Ok(payload)
            });
        }
        let fill = |payload| {
            let (pmem, log) = (&self.heap.pmem(), &self.heap.log);
            // With the block reserved: another transaction may have given it back as it failed.
            log.check()?;
            pmem.store(payload, bytes);
            pmem.flush(payload, bytes.len() as u64);
            // Before the entry is stored: it may become durable at once, and publish what is in the block.
            Ok(log.fence(pmem)?)
        };
        self.publish(slot, bytes.len() as u64, Some(fill))
    }

    /// As [`alloc_into`](Self::alloc_into), with room for `count` values, to be filled later: what it holds is what was there
    /// before.
    ///
    /// # Errors
    /// As [`alloc_into`](Self::alloc_into).
    ///
    /// # Durability
    /// As [`alloc_into`](Self::alloc_into), but for the value, for one fence.
    pub fn alloc_unfilled_into<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        count: u64,
    ) -> Result<Link<'p, T>, TxError> {
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        self.publish(slot, bytes, None::<fn(u64) -> Result<(), TxError>>)
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
    pub fn free_from<T: InPool<'p>>(&self, slot: Link<'p, Link<'p, T>>) -> Result<(), TxError> {
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
        let mut lane = heap.log.lane();
        let commit = |header| Ok::<_, TxError>(lane.commit_words(pmem, &[header, (slot, NULL)])?);
        match heap.space.free_published(pmem, payload, commit) {
            Some(freed) => freed,
            None => {
                drop(lane);
                heap.transaction(|tx| {
                    tx.free_block(payload)?;
                    tx.work.writes.word(slot, NULL);
                    Ok(())
                })
            }
        }
    }

    /// As [`alloc_into`](Self::alloc_into); `fill` makes what belongs into the block durable.
    fn publish<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        bytes: u64,
        fill: Option<impl Fn(u64) -> Result<(), TxError>>,
    ) -> Result<Link<'p, T>, TxError> {
        let heap = self.heap;
        outside(core::ptr::from_ref(heap).addr())?;
        let slot_offset = self.vacant(slot)?;
        // Other alignments than a line's are no value's, but for those that say so.
        let lines = Layout::lines_for(bytes).filter(|_| align_of::<T>() <= 64);
        if let Some(lines) = lines {
            let pmem = &heap.pmem();
            heap.log.check_open()?;
            let horizon = heap.log.recent_horizon();
            let mut lane = heap.log.lane();
            let allocated = heap.space.allocate_published(pmem, lines, horizon, fill.is_some(), |found| {
                if let Some(fill) = &fill {
                    fill(found.payload)?;
                }
                let link = (slot_offset, found.payload);
                let committed = match found.rest {
                    Some(rest) => lane.commit_words_ahead(pmem, &[rest, link, found.header], 1),
                    None => lane.commit_words(pmem, &[link, found.header]),
                };
                Ok::<_, TxError>(committed?)
            });
            if let Some(payload) = allocated {
                return Ok(Link::vouched(payload?));
            }
        }
        self.link_new(slot, |tx| {
            let payload = tx.reserve(bytes, align_of::<T>() as u64)?;
            if let Some(fill) = &fill {
                fill(payload)?;
            }
            Ok(payload)
        })
    }

    /// The same as a transaction, for what is not in this thread's arena, or long.
    fn link_new<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        alloc: impl Fn(&mut Tx<'_, P>) -> Result<u64, TxError>,
    ) -> Result<Link<'p, T>, TxError> {
        let slot = self.vacant(slot)?;
        self.heap.transaction(|tx| {
            let payload = alloc(tx)?;
            tx.work.writes.word(slot, payload);
            Ok(Link::vouched(payload))
        })
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
