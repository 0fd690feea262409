//! A transaction: its calls, its commit and its rollback.

use super::error::TxError;
use crate::format::{Lsn, ROOT};
use crate::layout::Layout;
use crate::links::{link_to, value_from};
use crate::log::LaneGuard;
use crate::parts::{HeapParts, InTransaction, StagedRoot, TxLists};
use crate::space::{Freeing, Reservation, SpaceError};
use core::fmt;
use core::marker::PhantomData;
use core::mem::{align_of, size_of};
use pm_core::{InPool, Link, Pmem, Region, Root, RootChange, RootError, RootWrite, bytes_of, bytes_of_slice};

/// Contents of a new block up to this length are logged: two lines cost less than a fence.
pub(super) const LOGGED_UP_TO_BYTES: usize = 96;

/// A transaction on the heap with the brand `'p`. [`Heap::transaction`](crate::Heap::transaction) creates it.
///
/// Its writes are kept in DRAM until it commits, and its reads see them. Contents of more than 96 bytes are stored in a new block immediately,
/// because nothing links to that block yet. A write of 2 KiB or more (or the length set by
/// [`HeapOptions::in_place_from_bytes`](crate::HeapOptions::in_place_from_bytes)) to an old block is made in place, with undo logging.
pub struct Tx<'p, P: Pmem = Region> {
    parts: &'p HeapParts<P>,
    lists: &'p mut TxLists,
    /// Acquired at the first write in place, or at the commit.
    lane: Option<LaneGuard<'p>>,
    /// Whether stores to new blocks need a fence before the commit.
    has_unfenced_stores: bool,
    may_grow: bool,
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
    /// After a crash before that commit is durable, recovery may roll back the whole transaction. In that case no later transaction was durable.
    Deferred,
}

/// Runs `f` as one transaction. Commits it if `f` returns `Ok`, and otherwise rolls it back.
pub(crate) fn run<P: Pmem, R, E: From<TxError>>(
    parts: &HeapParts<P>,
    durability: Durability,
    f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, E>,
) -> Result<R, E> {
    let mut thread = InTransaction::begin(parts.id()).ok_or(TxError::Nested)?;
    // If this is dropped without a commit, after an error or a panic, it rolls back.
    let mut tx = Tx::new(parts, thread.lists(), durability);
    let result = f(&mut tx)?;
    tx.commit()?;
    Ok(result)
}

impl<'p, P: Pmem> Tx<'p, P> {
    /// Lets later allocations of this transaction fail if there is no room, although the heap [may grow](crate::HeapOptions::max_bytes): for a program
    /// that can make room first.
    pub const fn forbid_growth(&mut self) {
        self.may_grow = false;
    }

    /// Allocates a block and writes `value` to it. The block is allocated when the transaction commits; the transaction may store links to it
    /// anywhere.
    ///
    /// # Errors
    /// When there is no room.
    ///
    /// # Durability
    /// With the transaction: after a crash before the commit the block is free. Costs the block's lines and its header's line. A value of up to 96
    /// bytes also costs two or three lines of the log. Longer values cost one fence for all of them in the transaction.
    ///
    /// A transaction reserves a whole free extent until it ends, and other threads cannot allocate from it. So an extent is first trimmed if no other
    /// long one is free: it is made two free blocks. The transaction reserves only the front one, about an eighth; later transactions use its rest
    /// without another trim. A trim costs two lines and two fences, or four fences if a live log entry stores to one of the headers.
    pub fn alloc<T: InPool<'p>>(&mut self, value: &T) -> Result<Link<'p, T>, TxError> {
        self.alloc_slice(core::slice::from_ref(value))
    }

    /// Allocates a block and writes these values to it, one after the other. Returns the link to the first value; [`Link::element`] makes links to
    /// the other values. The heap does not store their number.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_slice<T: InPool<'p>>(&mut self, values: &[T]) -> Result<Link<'p, T>, TxError> {
        let bytes = bytes_of_slice(values);
        let payload = self.alloc_payload(bytes.len() as u64, align_of::<T>() as u64)?;
        self.store_in_new_block(payload, bytes)?;
        Ok(link_to(payload))
    }

    /// Allocates an uninitialized block with room for `count` values: it holds the former contents of its lines. It needs no fence other than the
    /// transaction's.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_uninit<T: InPool<'p>>(&mut self, count: u64) -> Result<Link<'p, T>, TxError> {
        self.alloc_uninit_aligned(count, align_of::<T>() as u64)
    }

    /// Allocates an [uninitialized](Self::alloc_uninit) block at a multiple of `align_bytes`, a power of two, and of the alignment of `T`. All blocks
    /// are at multiples of 64.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and when a block of this length cannot have this alignment.
    ///
    /// # Durability
    /// As for [`alloc`](Self::alloc).
    ///
    /// # Panics
    /// When `align_bytes` is not a power of two.
    pub fn alloc_uninit_aligned<T: InPool<'p>>(
        &mut self,
        count: u64,
        align_bytes: u64,
    ) -> Result<Link<'p, T>, TxError> {
        assert!(
            align_bytes.is_power_of_two(),
            "the alignment must be a power of two, and {align_bytes} is not"
        );
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        Ok(link_to(self.alloc_payload(bytes, align_bytes.max(align_of::<T>() as u64))?))
    }

    /// Allocates a block with room for `count` values, and zeroes it.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As for [`alloc`](Self::alloc) with a value of more than 96 bytes.
    pub fn alloc_zeroed<T: InPool<'p>>(&mut self, count: u64) -> Result<Link<'p, T>, TxError> {
        self.alloc_aligned(count, align_of::<T>() as u64)
    }

    /// [Allocates and zeroes](Self::alloc_zeroed) a block at a multiple of `align_bytes`, a power of two, and of the alignment of `T`. All blocks
    /// are at multiples of 64.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and when a block of this length cannot have this alignment.
    ///
    /// # Durability
    /// As for [`alloc_zeroed`](Self::alloc_zeroed).
    ///
    /// # Panics
    /// When `align_bytes` is not a power of two.
    pub fn alloc_aligned<T: InPool<'p>>(
        &mut self,
        count: u64,
        align_bytes: u64,
    ) -> Result<Link<'p, T>, TxError> {
        const ZEROES: [u8; 4096] = [0; 4096];
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        let link = self.alloc_uninit_aligned(count, align_bytes)?;
        let payload = link.offset();
        let pmem = &self.parts.pmem();
        self.parts.log.check_not_poisoned()?;
        self.has_unfenced_stores |= bytes > 0;
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(ZEROES.len() as u64);
            #[expect(clippy::cast_possible_truncation, reason = "at most 4,096")]
            pmem.store_nt(payload + done, &ZEROES[..step as usize]);
            done += step;
        }
        Ok(link)
    }

    /// Frees the block that `link` points to. [`alloc`](Self::alloc) or a similar call has returned the link, in this transaction or an earlier one.
    /// Other links to the block dangle, and the program must not follow them.
    ///
    /// # Errors
    /// When there is no such block, it is already free, or its header is corrupted. In these cases nothing is freed.
    ///
    /// # Durability
    /// With the transaction. Costs the line of the header. The block is not allocated again before the checkpoint LSN has reached the
    /// transaction's LSN.
    pub fn free<T: InPool<'p>>(&mut self, link: Link<'p, T>) -> Result<(), TxError> {
        self.free_block(link.offset())
    }

    /// The capacity in bytes of the block that `link` points to: the requested length, or a little more.
    ///
    /// # Errors
    /// As for [`free`](Self::free). [`FreeError::AlreadyFree`](crate::FreeError::AlreadyFree) for a block that this transaction allocates, because
    /// it is free until the transaction commits.
    pub fn capacity_bytes<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<u64, TxError> {
        self.parts.log.check_not_poisoned()?;
        Ok(self.parts.space.usable_bytes(&self.parts.pmem(), link.offset())?)
    }

    /// A link to the value at `offset`, for structures that keep the offsets of links in DRAM. The caller ensures that there is such a value.
    ///
    /// # Errors
    /// When it would not fit into the heap's chunks, or is not aligned.
    pub fn link_at<T: InPool<'p>>(&self, offset: u64) -> Result<Link<'p, T>, TxError> {
        Ok(self.parts.link_at(offset)?)
    }

    /// Notes that this thread has stored bytes around the cache, or stored and flushed them, that the transaction is to publish.
    ///
    /// # Durability
    /// A fence precedes the commit, so no crash leaves the transaction without the bytes.
    pub const fn note_unfenced_stores(&mut self) {
        self.has_unfenced_stores = true;
    }

    /// Copies out the value that a link points to, including the writes of this transaction.
    ///
    /// # Errors
    /// When the link is null or points outside the heap.
    pub fn read<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<T, TxError> {
        let offset = self.parts.check_link(link, 1)?;
        Ok(value_from(|bytes| self.load(offset, bytes)))
    }

    /// Copies out `out.len()` bytes, starting with the one that the link points to.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_bytes(&self, link: Link<'p, u8>, out: &mut [u8]) -> Result<(), TxError> {
        let offset = self.parts.check_link(link, out.len() as u64)?;
        self.load(offset, out);
        Ok(())
    }

    /// Writes the value that a link points to. [`Link::field`] makes a link to a field.
    ///
    /// # Errors
    /// When the link is null or points outside the heap. Values of 2 KiB or more are written in place immediately, so the errors of
    /// [`Heap::transaction`](crate::Heap::transaction) may also occur here.
    ///
    /// # Durability
    /// With the transaction.
    pub fn write<T: InPool<'p>>(&mut self, link: Link<'p, T>, value: &T) -> Result<(), TxError> {
        let offset = self.parts.check_link(link, 1)?;
        self.store(offset, bytes_of(value))
    }

    /// Writes values one after the other, starting at the value that the link points to.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    ///
    /// # Durability
    /// With the transaction.
    pub fn write_slice<T: InPool<'p>>(&mut self, link: Link<'p, T>, values: &[T]) -> Result<(), TxError> {
        let offset = self.parts.check_link(link, values.len() as u64)?;
        self.store(offset, bytes_of_slice(values))
    }

    /// Reads a value, calls `change` with it, and writes it back. Returns the result of `change`.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    ///
    /// # Durability
    /// With the transaction.
    pub fn edit<T: InPool<'p>, R>(
        &mut self,
        link: Link<'p, T>,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, TxError> {
        let mut value = self.read(link)?;
        let result = change(&mut value);
        self.write(link, &value)?;
        Ok(result)
    }

    /// The root with this name, if there is one, including the changes of this transaction.
    ///
    /// # Errors
    /// When it holds another type, or is not found while a slot of the directory is corrupted.
    pub fn root<T: InPool<'p>>(&self, name: &str) -> Result<Option<Link<'p, T>>, TxError> {
        let root = match self.staged_root(name) {
            Some(staged) => staged,
            None => self.parts.pool.find_root(name)?,
        };
        Ok(root.map(|root| self.parts.typed_root(&root)).transpose()?)
    }

    /// Sets the root with this name to `link`, so that [`root`](Self::root) finds it after a restart. Replaces a former root with this name. If two
    /// transactions set the same root, the later commit replaces the root of the earlier one.
    ///
    /// # Errors
    /// When the link is null or points outside the heap. When the name is empty, longer than 24 bytes or the heap's own, `pm-alloc.heap`. When the
    /// directory already has 63 other roots, including the heap's own, and this transaction has removed none of them. If other transactions take the
    /// last slots first, this one fails when it commits.
    ///
    /// # Durability
    /// With the transaction. Costs two log entries, and the root's line.
    pub fn set_root<T: InPool<'p>>(&mut self, name: &str, link: Link<'p, T>) -> Result<(), TxError> {
        let offset = self.parts.check_link(link, 1)?;
        self.stage_root(name, Some((offset, size_of::<T>() as u64, T::LAYOUT)))
    }

    /// Removes a root, if there is one. Its value stays allocated.
    ///
    /// # Errors
    /// When the name is invalid, as for [`set_root`](Self::set_root). When the root is not found, and a corrupted slot of the directory may have held
    /// it; [`Heap::discard_corrupted_roots`](crate::Heap::discard_corrupted_roots) frees such slots.
    ///
    /// # Durability
    /// With the transaction.
    pub fn remove_root(&mut self, name: &str) -> Result<(), TxError> {
        self.stage_root(name, None)
    }

    pub(super) const fn new(parts: &'p HeapParts<P>, lists: &'p mut TxLists, durability: Durability) -> Self {
        let (lane, has_unfenced_stores, may_grow) = (None, false, true);
        Self { parts, lists, lane, has_unfenced_stores, may_grow, durability, brand: PhantomData }
    }

    /// Commits: adds headers and roots to the write set, fences the stores to new blocks, commits through a lane, and settles reservations and freed
    /// blocks.
    pub(super) fn commit(mut self) -> Result<(), TxError> {
        self.write_headers();
        if self.lists.writes.is_empty() && self.lists.roots.is_empty() && self.lane.is_none() {
            // There is nothing to store: any freed blocks are in unreachable extents, and are freed in DRAM only.
            self.finish_freeing(Lsn::ZERO);
            return Ok(());
        }
        if self.has_unfenced_stores {
            // An entry may become durable as soon as it is stored, and would then publish blocks whose contents are not durable.
            self.parts.log.fence(&self.parts.pmem())?;
        }
        self.lane();
        // This comes after the lane is acquired, so that no transaction waits for a lane while it holds the lock of the roots.
        let change = self.write_roots()?;
        let writes = &self.lists.writes;
        let lane = self.lane.get_or_insert_with(|| LaneGuard::acquire(&self.parts.log));
        let committed = match self.durability == Durability::Deferred && writes.is_empty() {
            true => lane.commit_deferred(&self.parts.pmem()),
            false => lane.commit(&self.parts.pmem(), writes),
        };
        // After a failed fence the changed roots stay hidden, because it is unknown which of them are durable. Otherwise all of them are durable,
        // or nothing was stored.
        if let Some(change) = change
            && (committed.is_ok() || self.parts.log.check_not_poisoned().is_ok())
        {
            change.complete();
        }
        let lsn = committed?;
        self.lane = None;
        for reservation in self.lists.reservations.drain(..) {
            self.parts.space.settle(reservation, lsn);
        }
        self.finish_freeing(lsn);
        Ok(())
    }

    /// Adds the headers of allocated and freed blocks to the write set.
    fn write_headers(&mut self) {
        let TxLists { writes, reservations, freeing, .. } = &mut *self.lists;
        for reservation in reservations.iter() {
            let (inner, front) = reservation.inner_and_front();
            inner.for_each(|(offset, word)| writes.early_header(offset, word));
            front.into_iter().for_each(|(offset, word)| writes.header(offset, word));
        }
        for (offset, word) in freeing.iter().filter_map(Freeing::header) {
            writes.header(offset, word);
        }
    }

    fn finish_freeing(&mut self, lsn: Lsn) {
        for freeing in self.lists.freeing.drain(..) {
            self.parts.space.finish_free(freeing, lsn);
        }
    }

    fn lane(&mut self) -> &mut LaneGuard<'p> {
        self.lane.get_or_insert_with(|| LaneGuard::acquire(&self.parts.log))
    }

    /// Allocates an uninitialized block of at least `bytes` bytes, and returns the offset of its payload: a multiple of 64 and of `align_bytes`.
    pub(super) fn alloc_payload(&mut self, bytes: u64, align_bytes: u64) -> Result<u64, TxError> {
        self.parts.log.check_open()?;
        let lines = Layout::lines_for(bytes).unwrap_or(u64::MAX);
        let carved = self.lists.reservations.last_mut().and_then(|last| last.carve(lines, align_bytes));
        let block = match carved {
            Some(block) => block,
            None => {
                let reservation = self.find_room(lines, align_bytes)?;
                let reservation = self.add_reservation(reservation)?;
                let block =
                    reservation.carve(lines, align_bytes).expect("the block fits into its reservation");
                // The zeros that replace the first headers of chunks inside a huge block must be fenced before the log entry with the block's header
                // can be durable.
                self.has_unfenced_stores |= reservation.is_huge();
                // A view's `alloc_and_link` may have released these lines because its fence failed. (A failed `Tx` abandons its extents.)
                self.parts.log.check_not_poisoned()?;
                block
            }
        };
        let payload = block.start;
        // All bytes of the block, because a link to an array element may point after the requested ones.
        self.lists.new_blocks.push(block);
        Ok(payload)
    }

    /// Reserves an extent with room for a block. Tries this thread's arena first, then other arenas and unused chunks. If that fails, retires idle
    /// lanes at two fences, so that blocks leave quarantine, and tries again. If that fails, too, grows the heap, if it and the transaction may.
    fn find_room(&self, lines: u64, align_bytes: u64) -> Result<Reservation, TxError> {
        let (space, log, pmem) = (&self.parts.space, &self.parts.log, &self.parts.pmem());
        if let Some(found) = space.reserve_own(pmem, lines, align_bytes, log.recent_checkpoint_lsn()) {
            return Ok(found);
        }
        loop {
            let chunk_count = space.chunk_count();
            let found = match space.reserve(pmem, lines, align_bytes, log.checkpoint_lsn()) {
                Err(SpaceError::Full { quarantined: true, .. }) => {
                    log.raise_checkpoint(pmem, log.latest())?;
                    space.reserve(pmem, lines, align_bytes, log.checkpoint_lsn())
                }
                found => found,
            };
            match found {
                Err(SpaceError::Full { .. } | SpaceError::TooLong { .. })
                    if self.may_grow && self.parts.grow_for(lines, chunk_count)? => {}
                found => return Ok(found?),
            }
        }
    }

    /// Adds the reservation to this transaction. If the extent consists of several free blocks or must be trimmed, durably makes it one free block.
    fn add_reservation(&mut self, reservation: Reservation) -> Result<&mut Reservation, TxError> {
        let (parts, pmem) = (self.parts, &self.parts.pmem());
        let (is_one_block, mut headers) = (reservation.is_one_block(), reservation.join_headers());
        // The reservation is added first, so that it is returned after an error or a panic: other threads may be waiting for a part of it.
        self.lists.reservations.push(reservation);
        if !is_one_block {
            headers.try_for_each(|(offset, word)| parts.store_header(offset, word))?;
            let reservation = self.lists.reservations.last_mut().expect("it was pushed");
            parts.space.finish_join(pmem, reservation, Lsn::ZERO);
        }
        Ok(self.lists.reservations.last_mut().expect("it was pushed"))
    }

    pub(super) fn free_block(&mut self, payload: u64) -> Result<(), TxError> {
        if let Some(at) = self.lists.new_blocks.iter().position(|block| block.start == payload) {
            // The block was never allocated, so another transaction may reserve it before this one commits.
            let block = self.lists.new_blocks.remove(at);
            self.lists.writes.remove(block.start, block.end - block.start);
            let at = self.lists.reservations.iter_mut().position(|reservation| reservation.uncarve(payload));
            let at = at.expect("a new block lies in a reservation");
            if self.lists.reservations[at].is_unused() {
                self.parts.space.return_unused(self.lists.reservations.remove(at));
            }
            return Ok(());
        }
        self.parts.log.check_open()?;
        let freeing = self.parts.space.begin_free(&self.parts.pmem(), payload)?;
        self.lists.freeing.push(freeing);
        Ok(())
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.parts.pmem().load(offset, out);
        self.lists.writes.overlay(offset, out);
    }

    /// Stores into a new block, to which nothing links before the transaction commits. Short contents are logged. Long contents are stored
    /// immediately, and fenced before the commit.
    pub(super) fn store_in_new_block(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TxError> {
        if bytes.len() <= LOGGED_UP_TO_BYTES || self.lists.writes.overlaps(offset, bytes.len()) {
            self.lists.writes.hidden_bytes(offset, bytes);
            return Ok(());
        }
        self.parts.log.check_not_poisoned()?;
        self.parts.pmem().store(offset, bytes);
        self.parts.pmem().flush(offset, bytes.len() as u64);
        self.has_unfenced_stores = true;
        Ok(())
    }

    /// Stores into a new or an old block, at an offset that was checked.
    fn store(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TxError> {
        let (start, end) = (offset, offset + bytes.len() as u64);
        if self.lists.new_blocks.iter().rev().any(|block| block.start <= start && end <= block.end) {
            self.store_in_new_block(offset, bytes)?;
        } else if bytes.len() >= self.parts.in_place_from_bytes
            && !self.lists.writes.overlaps(offset, bytes.len())
        {
            let pmem = &self.parts.pmem();
            self.lane().undo(pmem, offset, bytes.len() as u64)?;
            self.parts.id().note_in_place(start..end);
            pmem.store(offset, bytes);
            pmem.flush(offset, bytes.len() as u64);
        } else {
            self.lists.writes.bytes(offset, bytes);
        }
        Ok(())
    }

    /// Writes a word, which commits with the transaction.
    pub(super) fn write_word(&mut self, offset: u64, value: u64) {
        self.lists.writes.word(offset, value);
    }

    fn stage_root(&mut self, name: &str, target: Option<(u64, u64, u64)>) -> Result<(), TxError> {
        if name == ROOT {
            return Err(RootError::Reserved { name: name.to_owned() }.into());
        }
        // This slot is for early errors, and for reads of the root in this transaction: the commit may choose another slot.
        let staged: Vec<RootWrite> = self.lists.roots.iter().filter_map(|staged| staged.write).collect();
        let write = self.parts.pool.root_write(name, target, &staged)?;
        self.lists.roots.retain(|staged| staged.name != name);
        self.lists.roots.push(StagedRoot { name: name.to_owned(), target, write });
        Ok(())
    }

    /// The root as this transaction has changed it; `Some(None)` if it has removed the root. `None` if it has not changed the root.
    fn staged_root(&self, name: &str) -> Option<Option<Root>> {
        let staged = self.lists.roots.iter().find(|staged| staged.name == name)?;
        Some(staged.write.and_then(|write| write.root()))
    }

    /// Adds the staged roots to the write set, and hides them from readers until the change is complete. The lane is already acquired, and the
    /// lock of the root directory is the last in the lock order.
    fn write_roots(&mut self) -> Result<Option<RootChange<'p>>, TxError> {
        if self.lists.roots.is_empty() {
            return Ok(None);
        }
        self.parts.log.check_not_poisoned()?;
        let (pool, staged) = (&self.parts.pool, &self.lists.roots);
        let mut change = pool.begin_root_change()?;
        let mut slots = Vec::new();
        // Removals first: they free slots.
        let (removed, set): (Vec<_>, Vec<_>) = staged.iter().partition(|root| root.target.is_none());
        for StagedRoot { name, target, .. } in removed.into_iter().chain(set) {
            slots.extend(pool.root_write(name, *target, &slots)?);
        }
        pool.hide_roots(&mut change, &slots);
        for slot in slots {
            self.lists.writes.bytes(slot.offset(), slot.bytes());
        }
        Ok(Some(change))
    }
}

impl<P: Pmem> Drop for Tx<'_, P> {
    /// Rolls back a transaction that did not commit. After a commit this does nothing.
    fn drop(&mut self) {
        if let Some(mut lane) = self.lane.take() {
            // If this fails, the log is poisoned, and recovery on the next open rolls back.
            lane.roll_back(&self.parts.pmem()).unwrap_or_default();
        }
        // After a failed fence the transaction may be durable, and its blocks may be allocated.
        let is_outcome_known = self.parts.log.check_not_poisoned().is_ok();
        for reservation in self.lists.reservations.drain(..) {
            if is_outcome_known {
                self.parts.space.return_unused(reservation);
            } else {
                self.parts.space.abandon(reservation);
            }
        }
        for freeing in self.lists.freeing.drain(..) {
            self.parts.space.cancel_free(freeing);
        }
    }
}

impl<P: Pmem> fmt::Debug for Tx<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("writes", &self.lists.writes)
            .field("new_blocks", &self.lists.new_blocks)
            .field("freeing", &self.lists.freeing.len())
            .finish_non_exhaustive()
    }
}
