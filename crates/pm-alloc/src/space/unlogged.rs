//! Allocating and freeing with no log, for a plain `malloc` over the heap.

use super::error::{FreeError, SpaceError};
use super::heap_space::Space;
use super::reservation::Reservation;
use super::scan::{chunk_lines, read};
use crate::format::{BLOCK_HEADER_BYTES, BlockState, Lsn};
use crate::layout::Layout;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock, yield_now};
use pm_core::Pmem;

/// Where a call that found no room waits until the calls under way have ended, and new calls wait behind it.
#[derive(Debug)]
pub(super) struct Starved {
    is_waiting: AtomicBool,
    turn: Mutex<()>,
}

impl Starved {
    pub(super) fn new() -> Self {
        Self { is_waiting: AtomicBool::new(false), turn: Mutex::new(()) }
    }
}

/// A reservation until it is settled. Dropped before, after an error or a panic, it is returned; or, if headers may have been stored, its
/// lines stay in use until the heap is opened again.
struct Unsettled<'s> {
    space: &'s Space,
    reservation: Option<Reservation>,
    is_stored: bool,
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        if self.is_stored {
            self.space.abandon(reservation);
        } else {
            self.space.return_unused(reservation);
        }
    }
}

impl Space {
    /// Allocates a block, and says where its payload starts. Before anything is stored, `ensure` is asked whether so many bytes from
    /// an offset on can be stored to. If not, another free extent is tried; `None` if there is none, and nothing is allocated then.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and when a fence fails. Nothing is stored after that, the extent stays reserved, and whether
    /// the block is allocated the next opening knows.
    ///
    /// # Durability
    /// Whoever reads the memory after this process was killed inside of it finds a whole chain, with the block or without: the
    /// header behind the block is stored before the one that leads to it. If `durable`, the same holds after a crash of the
    /// machine, for each is made durable before the next is stored, at a fence each, and one for a block longer than a chunk; the
    /// last makes the block durable.
    pub(crate) fn allocate_unlogged_if<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        durable: bool,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u64>, SpaceError> {
        // Kept until one is found, so that each is tried once.
        let mut refused = Vec::new();
        let (mut unsettled, lines) = loop {
            let found = match refused.is_empty() {
                true => self.reserve_unlogged(pmem, lines, align_bytes),
                // Never waiting for others with something held that they may wait for.
                false => self.reserve(pmem, lines, align_bytes, Lsn::MAX),
            };
            let reservation = match found {
                Err(SpaceError::Full { .. }) if !refused.is_empty() => return Ok(None),
                found => found?,
            };
            let lines = reservation.rather_all_than(lines, align_bytes);
            let (from, to) = reservation.stored_to(lines, align_bytes);
            let unsettled = Unsettled { space: self, reservation: Some(reservation), is_stored: false };
            if ensure(from, to - from) {
                break (unsettled, lines);
            }
            refused.push(unsettled);
        };
        drop(refused);
        unsettled.is_stored = true;
        let reservation = unsettled.reservation.as_mut().expect("it is not settled yet");
        let store = |(offset, word)| {
            pmem.store_u64(offset, word);
            if durable { pmem.persist(offset, BLOCK_HEADER_BYTES) } else { Ok(()) }
        };
        if reservation.is_over_chunks() {
            reservation.joining_headers().try_for_each(store)?;
            reservation.joined(pmem, Lsn::ZERO);
            if durable {
                pmem.fence()?;
            }
        } else {
            reservation.needs_no_joining();
        }
        let payload =
            reservation.carve(lines, align_bytes).expect("there is room for what was reserved").start;
        reservation.headers().try_for_each(store)?;
        let reservation = unsettled.reservation.take().expect("it is not settled yet");
        self.settle(reservation, Lsn::ZERO);
        Ok(Some(payload))
    }

    /// As [`reserve`](Self::reserve) of what was freed without a log, where nothing is reserved but by calls that end by themselves: it is
    /// full only if there is no room without what these hold.
    #[inline]
    fn reserve_unlogged<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
    ) -> Result<Reservation, SpaceError> {
        if self.starved.is_waiting.load(Ordering::Acquire) {
            drop(lock(&self.starved.turn));
        }
        match self.reserve(pmem, lines, align_bytes, Lsn::MAX) {
            Err(SpaceError::Full { held: true, .. }) => self.reserve_alone(pmem, lines, align_bytes),
            found => found,
        }
    }

    /// For a short block a call takes a whole free extent out of use, which may be the last one, until its headers are stored. It holds no
    /// lock meanwhile. While new calls wait, those under way are over soon.
    #[cold]
    fn reserve_alone<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
    ) -> Result<Reservation, SpaceError> {
        let _turn = lock(&self.starved.turn);
        self.starved.is_waiting.store(true, Ordering::Release);
        let found = loop {
            match self.reserve(pmem, lines, align_bytes, Lsn::MAX) {
                Err(SpaceError::Full { held: true, .. }) => yield_now(),
                found => break found,
            }
        };
        self.starved.is_waiting.store(false, Ordering::Release);
        found
    }

    /// As [`allocate_unlogged_if`](Self::allocate_unlogged_if), where everything can be stored to.
    #[cfg(test)]
    pub(crate) fn allocate_unlogged<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        durable: bool,
    ) -> Result<u64, SpaceError> {
        let block = self.allocate_unlogged_if(pmem, lines, align_bytes, durable, |_, _| true)?;
        Ok(block.expect("nothing is refused"))
    }

    /// Frees a block that was allocated, this way or another.
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free).
    ///
    /// # Durability
    /// One word is stored, and flushed if so wished: durable with the caller's next fence. Behind the cut of a chain nothing is.
    pub(crate) fn free_unlogged<P: Pmem>(
        &self,
        pmem: &P,
        payload: u64,
        flush: bool,
    ) -> Result<(), FreeError> {
        // Each block keeps its header: the more of them lie in a free extent, the more lengths can be had from it whole.
        let freeing = self.begin_free_alone(pmem, payload)?;
        if let Some((offset, word)) = freeing.header() {
            pmem.store_u64(offset, word);
            if flush {
                pmem.flush(offset, BLOCK_HEADER_BYTES);
            }
        }
        self.finish_free(freeing, Lsn::ZERO);
        Ok(())
    }

    /// How many bytes of payload the block has that starts at `payload`, by its header and nothing else. Takes no lock.
    ///
    /// # Errors
    /// As [`usable_bytes`](Self::usable_bytes).
    pub(crate) fn usable_by_header<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<u64, FreeError> {
        let (chunk, line) = self.locate(payload)?;
        let header = read(pmem, &self.layout, chunk, line).1;
        let header_offset = Layout::header_of(payload);
        let header = header.ok_or(FreeError::Corrupted { offset: payload, header_offset })?;
        let in_chunk = chunk_lines(&self.layout);
        let fits = line == 1 || u64::from(line) + u64::from(header.lines) <= u64::from(in_chunk);
        match header.state {
            BlockState::Allocated if fits => Ok(Layout::usable_bytes(header.lines)),
            BlockState::Free => Err(FreeError::AlreadyFree { offset: payload }),
            BlockState::Allocated | BlockState::Lost | BlockState::End | BlockState::Severed => {
                Err(FreeError::Corrupted { offset: payload, header_offset })
            }
        }
    }
}
