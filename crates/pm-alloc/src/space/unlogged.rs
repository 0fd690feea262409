//! Allocating and freeing without the log, for a plain `malloc` over the heap.

use super::error::{FreeError, SpaceError};
use super::headers::{HeaderWord, chunk_lines, read};
use super::heap_space::Space;
use super::reservation::Reservation;
use crate::format::{BLOCK_HEADER_BYTES, BlockState, Lsn};
use crate::layout::Layout;
use crate::sync::yield_now;
use core::ops::Range;
use pm_core::{FenceError, Pmem};

/// The space of a heap, used without the log. A reservation lasts for one call only.
#[derive(Debug)]
pub(crate) struct Unlogged<'s, P> {
    pub(super) space: &'s Space,
    pub(super) pmem: &'s P,
    /// Whether each header is made durable when it is stored.
    is_durable: bool,
}

impl<P> Clone for Unlogged<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Unlogged<'_, P> {}

/// A free block that is about to be allocated. If this is dropped before any header is stored, the block is free again. If it is dropped later, the
/// lines stay in use until the next open.
#[derive(Debug)]
#[must_use = "the block is free again when this is dropped"]
pub(crate) struct UnloggedBlock<'s, P: Pmem> {
    unlogged: Unlogged<'s, P>,
    /// `None` once it is settled.
    reservation: Option<Reservation>,
    lines: u64,
    align_bytes: u64,
    is_stored: bool,
}

impl<'s, P: Pmem> Unlogged<'s, P> {
    pub(crate) const fn new(space: &'s Space, pmem: &'s P, is_durable: bool) -> Self {
        Self { space, pmem, is_durable }
    }

    /// Reserves a block of `lines` lines at a multiple of `align_bytes`.
    ///
    /// # Errors
    /// As for [`Space::reserve`]. [`SpaceError::Full`] only if there is no room even after the calls in progress have ended.
    #[inline]
    pub(crate) fn reserve(&self, lines: u64, align_bytes: u64) -> Result<UnloggedBlock<'s, P>, SpaceError> {
        self.space.gate.pass();
        match self.reserve_another(lines, align_bytes) {
            Err(SpaceError::Full { held: true, .. }) => self.reserve_alone(lines, align_bytes),
            found => found,
        }
    }

    /// [Reserves](Self::reserve) for a caller that holds other reservations. Does not wait for other calls, because they may be waiting for these
    /// reservations.
    ///
    /// # Errors
    /// As for [`Space::reserve`].
    #[inline]
    pub(crate) fn reserve_another(
        &self,
        lines: u64,
        align_bytes: u64,
    ) -> Result<UnloggedBlock<'s, P>, SpaceError> {
        let reservation = self.space.reserve(self.pmem, lines, align_bytes, Lsn::MAX)?;
        let lines = reservation.first_block_lines(lines, align_bytes);
        let reservation = Some(reservation);
        Ok(UnloggedBlock { unlogged: *self, reservation, lines, align_bytes, is_stored: false })
    }

    /// Reserves after the calls in progress have ended. Each call may hold a whole free extent, perhaps the last extent, until its headers are
    /// stored. Until this returns, new calls wait at the gate.
    #[cold]
    fn reserve_alone(&self, lines: u64, align_bytes: u64) -> Result<UnloggedBlock<'s, P>, SpaceError> {
        let _closed = self.space.gate.close();
        loop {
            match self.reserve_another(lines, align_bytes) {
                Err(SpaceError::Full { held: true, .. }) => yield_now(),
                found => return found,
            }
        }
    }

    /// Frees an allocated block, which a transaction may have allocated.
    ///
    /// # Errors
    /// As for [`Space::begin_free`].
    ///
    /// # Durability
    /// Stores one word. If headers are made durable, also flushes it, and the caller's next fence makes it durable. In an unreachable extent nothing
    /// is stored.
    pub(crate) fn free(&self, payload: u64) -> Result<(), FreeError> {
        // The block is not coalesced, because the more blocks a free extent consists of, the more lengths can be allocated from it without a rest.
        let freeing = self.space.begin_free_alone(self.pmem, payload)?;
        if let Some((offset, word)) = freeing.header() {
            self.pmem.store_u64(offset, word);
            if self.is_durable {
                self.pmem.flush(offset, BLOCK_HEADER_BYTES);
            }
        }
        self.space.finish_free(freeing, Lsn::ZERO);
        Ok(())
    }

    /// The capacity in bytes of the block that starts at `payload`, according to its header. Acquires no lock.
    ///
    /// # Errors
    /// As for [`Space::usable_bytes`].
    pub(crate) fn usable_bytes(&self, payload: u64) -> Result<u64, FreeError> {
        let (chunk, line) = self.space.chunks.locate(payload)?;
        let header = read(self.pmem, self.space.layout(), chunk, line).1;
        let header_offset = Layout::header_offset_of(payload);
        let header = header.ok_or(FreeError::Corrupted { offset: payload, header_offset })?;
        let in_chunk = chunk_lines(self.space.layout());
        let fits = line == 1 || u64::from(line) + u64::from(header.lines) <= u64::from(in_chunk);
        match header.state {
            BlockState::Allocated if fits => Ok(Layout::usable_bytes(header.lines)),
            BlockState::Free => Err(FreeError::AlreadyFree { offset: payload }),
            BlockState::Allocated | BlockState::Lost | BlockState::End | BlockState::Unreachable => {
                Err(FreeError::Corrupted { offset: payload, header_offset })
            }
        }
    }

    /// Stores a header. If headers are made durable, also flushes and fences it. After an error nothing more may be stored.
    pub(super) fn store(&self, (offset, word): HeaderWord) -> Result<(), FenceError> {
        self.pmem.store_u64(offset, word);
        // DURABILITY POINT
        if self.is_durable { self.pmem.persist(offset, BLOCK_HEADER_BYTES) } else { Ok(()) }
    }
}

impl<P: Pmem> UnloggedBlock<'_, P> {
    /// The range of the region that the allocation may store to: the block, its header, and the header after it.
    pub(crate) fn stored_range(&self) -> Range<u64> {
        let reservation = self.reservation.as_ref().expect("the reservation is not settled yet");
        reservation.stored_range(self.lines, self.align_bytes)
    }

    /// Allocates the block, and returns the offset of its payload.
    ///
    /// # Errors
    /// When a fence fails. Nothing is stored after that, and the lines stay in use. The next open decides whether the block is allocated.
    ///
    /// # Durability
    /// A kill in this call leaves an intact chain, in which the block is allocated or free, because the header after the block is stored before the
    /// block's own. If headers are made durable, a crash of the machine leaves the same: each header is made durable before the next is stored. This
    /// costs one fence for each header, and one more for a huge block. The last fence makes the block durable.
    pub(crate) fn allocate(mut self) -> Result<u64, SpaceError> {
        self.is_stored = true;
        let reservation = self.reservation.as_mut().expect("the reservation is not settled yet");
        if reservation.is_huge() {
            reservation.join_headers().try_for_each(|header| self.unlogged.store(header))?;
            reservation.finish_join(self.unlogged.pmem, Lsn::ZERO);
            if self.unlogged.is_durable {
                self.unlogged.pmem.fence()?;
            }
        } else {
            reservation.mark_join_unneeded();
        }
        let carved = reservation.carve(self.lines, self.align_bytes);
        let payload = carved.expect("there is room for what was reserved").start;
        reservation.headers().try_for_each(|header| self.unlogged.store(header))?;
        let reservation = self.reservation.take().expect("the reservation is not settled yet");
        self.unlogged.space.settle(reservation, Lsn::ZERO);
        Ok(payload)
    }
}

impl<P: Pmem> Drop for UnloggedBlock<'_, P> {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        if self.is_stored {
            self.unlogged.space.abandon(reservation);
        } else {
            self.unlogged.space.return_unused(reservation);
        }
    }
}
