//! Views, which need no transaction: they read, store words and pairs in place, and allocate or free a block together with the link to it.

use super::error::TxError;
use super::transaction::{Durability, LOGGED_UP_TO_BYTES, Tx};
use crate::format::LINE_BYTES;
use crate::layout::Layout;
use crate::links::{link_to, value_from};
use crate::log::{self, LaneGuard};
use crate::parts::{HeapParts, InTransaction};
use core::marker::PhantomData;
use core::mem::{align_of, size_of};
use pm_core::{InPool, Link, PlaceError, Pmem, Region, RootError, bytes_of};

/// The alignment and the length of a pair of words that is stored atomically.
const PAIR_BYTES: u64 = 16;

/// The offset of a null link.
const NULL: u64 = 0;

/// A view of the heap with the brand `'p`. [`Heap::view`](crate::Heap::view) creates it.
#[derive(Debug)]
pub struct View<'p, P: Pmem = Region> {
    parts: &'p HeapParts<P>,
    brand: PhantomData<fn(&'p ()) -> &'p ()>,
}

impl<'p, P: Pmem> View<'p, P> {
    pub(crate) const fn new(parts: &'p HeapParts<P>) -> Self {
        Self { parts, brand: PhantomData }
    }

    /// The root with this name, if there is one.
    ///
    /// # Errors
    /// When it holds another type, or is not found while a slot of the directory is corrupted.
    pub fn root<T: InPool<'p>>(&self, name: &str) -> Result<Option<Link<'p, T>>, RootError> {
        self.parts.pool.find_root(name)?.map(|root| self.parts.typed_root(&root)).transpose()
    }

    /// A link to the value at `offset`, for structures that keep the offsets of links in DRAM. The caller ensures that there is such a value.
    ///
    /// # Errors
    /// When it would not fit into the heap's chunks, or is not aligned.
    pub fn link_at<T: InPool<'p>>(&self, offset: u64) -> Result<Link<'p, T>, PlaceError> {
        self.parts.link_at(offset)
    }

    /// Copies out the value that a link points to.
    ///
    /// # Errors
    /// When the link is null or points outside the heap.
    pub fn read<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<T, PlaceError> {
        let offset = self.parts.check_link(link, 1)?;
        Ok(value_from(|bytes| self.parts.pmem().load(offset, bytes)))
    }

    /// Copies out `out.len()` bytes, starting with the one that the link points to.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_bytes(&self, link: Link<'p, u8>, out: &mut [u8]) -> Result<(), PlaceError> {
        let offset = self.parts.check_link(link, out.len() as u64)?;
        self.parts.pmem().load(offset, out);
        Ok(())
    }

    /// Stores a word in place, atomically and durably, without a transaction.
    ///
    /// # Errors
    /// When the link is null or points outside the heap, or a fence fails. [`TxError::WrittenInPlace`] when the word lies in a long value
    /// that this thread's transaction on the same heap has written in place.
    ///
    /// # Durability
    /// When this returns, the new word is durable; a crash before that leaves the new word or the old one. Costs one line and one fence, and one
    /// line more if a recent transaction wrote to the same line.
    ///
    /// If the process is killed before this returns, the next process may read the new word although it is not durable. A power failure would then
    /// revert the word, but not the changes that the next process derived from it and committed. Storing the word again makes it durable.
    ///
    /// # Source
    /// PMFS 3.2, atomic in-place updates.
    pub fn store_u64(&self, link: Link<'p, u64>, value: u64) -> Result<(), TxError> {
        let offset = self.parts.check_link(link, 1)?;
        self.check_not_changed_in_place(offset, 8)?;
        log::store_u64(&self.parts.log, &self.parts.pmem(), offset, value)?;
        Ok(())
    }

    /// Stores two words in place, atomically and durably, without a transaction: for example a value and its version, or both ends of a range.
    ///
    /// A concurrent reader loads the words one after the other, and may combine the first word of one pair with the second word of the next. The
    /// program must exclude readers during the call, for example with a lock.
    ///
    /// # Errors
    /// When the link is null or points outside the heap. [`Misaligned`](pm_core::PlaceError::Misaligned) when the offset is not a multiple of 16:
    /// blocks start at multiples of 64, so the fields before the pair determine its alignment. [`TxError::WrittenInPlace`] as for
    /// [`store_u64`](Self::store_u64). In these cases nothing was stored. When a fence fails.
    ///
    /// # Durability
    /// When this returns, the new pair is durable; a crash before that leaves the new pair or the old one, never one word of each. Costs one line
    /// and one fence, and one line more if a recent transaction wrote to the same line.
    ///
    /// After a kill, the same holds as for [`store_u64`](Self::store_u64).
    ///
    /// # Source
    /// PMFS 3.2, atomic in-place updates of 16 bytes.
    pub fn store_u64_pair(&self, link: Link<'p, [u64; 2]>, value: [u64; 2]) -> Result<(), TxError> {
        let offset = self.parts.check_link(link, 1)?;
        if !offset.is_multiple_of(PAIR_BYTES) {
            return Err(PlaceError::Misaligned { offset, align_bytes: PAIR_BYTES }.into());
        }
        self.check_not_changed_in_place(offset, PAIR_BYTES)?;
        log::store_u64_pair(&self.parts.log, &self.parts.pmem(), offset, value)?;
        Ok(())
    }

    /// Allocates a block, writes `value` to it, and links `slot` to it, in one step.
    ///
    /// # Errors
    /// When there is no room, or `slot` [already links to a block](TxError::Occupied). [`TxError::Nested`] inside a transaction on the same heap,
    /// which has its own calls for this. In these cases nothing was changed. When a fence fails, as for
    /// [`Heap::transaction`](crate::Heap::transaction).
    ///
    /// # Durability
    /// When this returns, all of it is durable; a crash before that leaves all of it, or a free block and a null slot. Costs two fences, one line of
    /// the log, and the changed lines: the value, the slot, the block's header, and the next block's header if the block was split off a longer one.
    /// If the value has 96 bytes or less, it costs up to three lines of the log, and one fence.
    ///
    /// # Source
    /// PMDK's `pmemobj_alloc` with a destination.
    pub fn alloc_and_link<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        value: &T,
    ) -> Result<Link<'p, T>, TxError> {
        let bytes = bytes_of(value);
        self.alloc_and_link_bytes(slot, bytes.len() as u64, Some(bytes))
    }

    /// [Allocates and links](Self::alloc_and_link) an uninitialized block with room for `count` values: it holds the former contents of its lines.
    ///
    /// # Errors
    /// As for [`alloc_and_link`](Self::alloc_and_link).
    ///
    /// # Durability
    /// As for [`alloc_and_link`](Self::alloc_and_link) without the value, at one fence.
    pub fn alloc_uninit_and_link<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        count: u64,
    ) -> Result<Link<'p, T>, TxError> {
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        self.alloc_and_link_bytes(slot, bytes, None)
    }

    /// Frees the block that `slot` links to, and makes the slot null, in one step.
    ///
    /// # Errors
    /// When the slot is null, or does not link to a block that can be freed. [`TxError::Nested`] inside a transaction on the same heap. In these
    /// cases nothing was changed. When a fence fails, as for [`Heap::transaction`](crate::Heap::transaction).
    ///
    /// # Durability
    /// When this returns, both changes are durable; a crash before that leaves both or neither. Costs the lines of the block's header and of the
    /// slot, one line of the log, and one fence.
    ///
    /// # Source
    /// PMDK's `pmemobj_free`.
    pub fn unlink_and_free<T: InPool<'p>>(&self, slot: Link<'p, Link<'p, T>>) -> Result<(), TxError> {
        let parts = self.parts;
        self.check_outside_transaction()?;
        let slot = parts.check_link(slot, 1)?;
        let pmem = &parts.pmem();
        let payload = pmem.load_u64(slot);
        if payload == NULL {
            return Err(PlaceError::Null.into());
        }
        // Issued early: acquiring the locks below waits for the fence of this thread's last commit, and the prefetch overlaps with that wait.
        pmem.prefetch(Layout::header_offset_of(payload.max(LINE_BYTES)));
        let mut lane = LaneGuard::acquire(&parts.log);
        if let Some(held) = parts.space.chunks.hold_freeing(&lane, pmem, payload)? {
            let lsn = lane.commit_words(pmem, &[held.header(), (slot, NULL)])?;
            held.settle(lsn);
            return Ok(());
        }
        drop(lane);
        let mut thread = InTransaction::begin(parts.id()).ok_or(TxError::Nested)?;
        let mut tx = Tx::new(parts, thread.lists(), Durability::Immediate);
        tx.free_block(payload)?;
        tx.write_word(slot, NULL);
        tx.commit()
    }

    /// Allocates a block of `bytes` bytes, stores `contents` in it if there are any, and links `slot` to it.
    fn alloc_and_link_bytes<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        bytes: u64,
        contents: Option<&[u8]>,
    ) -> Result<Link<'p, T>, TxError> {
        self.check_outside_transaction()?;
        let slot = self.check_vacant(slot)?;
        // Short contents are logged, which only a transaction does. Alignments above 64 bytes also need a transaction.
        let is_long = contents.is_none_or(|contents| contents.len() > LOGGED_UP_TO_BYTES);
        let lines = Layout::lines_for(bytes).filter(|_| is_long && align_of::<T>() <= 64);
        if let Some(lines) = lines
            && let Some(payload) = self.alloc_in_own_arena(slot, lines, contents)?
        {
            return Ok(link_to(payload));
        }
        // A transaction is needed, or this thread's arena has no room, or the block is longer than a chunk.
        let mut thread = InTransaction::begin(self.parts.id()).ok_or(TxError::Nested)?;
        let mut tx = Tx::new(self.parts, thread.lists(), Durability::Immediate);
        let payload = tx.alloc_payload(bytes, align_of::<T>() as u64)?;
        if let Some(contents) = contents {
            tx.store_in_new_block(payload, contents)?;
        }
        tx.write_word(slot, payload);
        tx.commit()?;
        Ok(link_to(payload))
    }

    /// Allocates a block from this thread's arena and links `slot` to it with one commit of up to three words. `None` if the arena has no such
    /// block; then nothing was changed.
    #[inline]
    fn alloc_in_own_arena(
        &self,
        slot: u64,
        lines: u64,
        contents: Option<&[u8]>,
    ) -> Result<Option<u64>, TxError> {
        let (space, log, pmem) = (&self.parts.space, &self.parts.log, &self.parts.pmem());
        log.check_open()?;
        let mut lane = LaneGuard::acquire(log);
        let Some(held) = space.chunks.hold_block(&lane, pmem, lines, contents.is_some()) else {
            return Ok(None);
        };
        let payload = held.payload();
        if let Some(contents) = contents {
            // Checked while the block is held: another transaction may have returned the block after its fence had failed.
            log.check_not_poisoned()?;
            pmem.store(payload, contents);
            pmem.flush(payload, contents.len() as u64);
            // The entry may become durable as soon as it is stored, and would then publish a block whose contents are not durable.
            log.fence(pmem)?;
        }
        match held.rest() {
            Some(rest) => lane.commit_words_early(pmem, &[rest, (slot, payload), held.header()], 1)?,
            None => lane.commit_words(pmem, &[(slot, payload), held.header()])?,
        };
        held.settle(log.recent_checkpoint_lsn());
        Ok(Some(payload))
    }

    /// The offset of a slot, if it is null.
    fn check_vacant<T: InPool<'p>>(&self, slot: Link<'p, Link<'p, T>>) -> Result<u64, TxError> {
        let slot = self.parts.check_link(slot, 1)?;
        match self.parts.pmem().load_u64(slot) {
            NULL => Ok(slot),
            linked => Err(TxError::Occupied { slot, linked }),
        }
    }

    #[inline]
    fn check_outside_transaction(&self) -> Result<(), TxError> {
        if self.parts.id().is_in_transaction() { Err(TxError::Nested) } else { Ok(()) }
    }

    #[inline]
    fn check_not_changed_in_place(&self, offset: u64, len: u64) -> Result<(), TxError> {
        let is_changed = self.parts.id().is_changed_in_place(offset, len);
        if is_changed { Err(TxError::WrittenInPlace { offset }) } else { Ok(()) }
    }
}
