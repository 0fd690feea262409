//! The space of a heap, as its transactions see it: reserving, and what becomes of a reservation.

use super::arena::{Arena, IN_PASSING};
use super::clock::Clock;
use super::error::SpaceError;
use super::finding::Request;
use super::pool::{Home, Pool};
use super::reservation::{Held, Place, Reservation, align, whole_up_to};
use super::scan::chunk_lines;
use super::unlogged::Starved;
use crate::format::{LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::quiet_lock::{QuietGuard, QuietLock};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{IntactMutex, yield_now};
use core::cell::Cell;
use pm_core::{FenceError, Pmem};

/// Who may have which lines of a heap's chunks.
///
/// Each chunk is with an arena, with the pool, or under a block longer than a chunk. A thread has an arena to reserve
/// from, whose lock it finds free; who frees a block locks the arena that has its chunk. The pool's lock is taken where
/// chunks change hands, before any arena's; no thread holds the locks of two arenas.
#[derive(Debug)]
pub(crate) struct Space {
    pub(super) layout: Layout,
    /// [`Home`] of each chunk.
    pub(super) homes: Vec<AtomicU64>,
    pub(super) arenas: Vec<QuietLock<Arena>>,
    pub(super) pool: IntactMutex<Pool>,
    /// Whether the pool has a chunk that is free as a whole. Changed under the pool's lock, and read without it. Where it is false too
    /// often, reservations are cut that need not be; it is never true longer than there is such a chunk.
    pub(super) has_fresh: AtomicBool,
    pub(super) starved: Starved,
    pub(super) clock: Clock,
    /// This process made the heap.
    pub(super) is_new: bool,
}

impl Space {
    /// Reserves a free extent with room for a block of `lines` lines at a multiple of `align_bytes`, from the calling
    /// thread's arena if that has one.
    ///
    /// Of what was freed, only what was freed up to the LSN `checkpoint_lsn` is handed out.
    ///
    /// # Errors
    /// When there is none, or there cannot be one; see [`SpaceError`].
    ///
    /// # Panics
    /// When `lines` is zero, or `align_bytes` no power of two.
    ///
    /// # Durability
    /// Writes nothing, except where a freed block longer than a chunk is parted into chunks, with two fences; after a
    /// crash the same space is free.
    #[inline]
    pub(crate) fn reserve<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        checkpoint_lsn: Lsn,
    ) -> Result<Reservation, SpaceError> {
        self.reserve_in(self.own_arena(), pmem, lines, align_bytes, checkpoint_lsn)
    }

    /// As [`reserve`](Self::reserve), of the calling thread's arena as it is. `None` when that has no room.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve).
    #[inline]
    pub(crate) fn reserve_own<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        checkpoint_lsn: Lsn,
    ) -> Option<Reservation> {
        assert!(lines > 0, "a block has a line at least");
        assert!(align_bytes.is_power_of_two(), "alignments are powers of two");
        if lines >= self.layout.chunk_lines() {
            return None;
        }
        let request = Request { is_for_transaction: true, ..self.request(lines, align_bytes).ok()? };
        let held = self.reserve_of(self.own_arena(), pmem, request, checkpoint_lsn)?;
        Some(Reservation::new(&self.layout, held))
    }

    /// As [`reserve`](Self::reserve), from an arena of the caller's choice.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    #[inline]
    pub(crate) fn reserve_in<P: Pmem>(
        &self,
        arena: usize,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        checkpoint_lsn: Lsn,
    ) -> Result<Reservation, SpaceError> {
        assert!(lines > 0, "a block has a line at least");
        assert!(align_bytes.is_power_of_two(), "alignments are powers of two");
        if lines >= self.layout.chunk_lines() {
            return self.reserve_huge(arena, pmem, lines, align_bytes, checkpoint_lsn);
        }
        // With a log, several blocks would have to be made one first, which costs more than a header.
        let is_logged = checkpoint_lsn != Lsn::MAX;
        let request = self.request(lines, align_bytes)?;
        let is_anywhere = request.roomy == request.lines;
        let whole_up_to = if is_logged || !is_anywhere { 0 } else { whole_up_to(request.lines) };
        let request = Request { whole_up_to, is_for_transaction: is_logged, ..request };
        let held = match self.reserve_of(arena, pmem, request, checkpoint_lsn) {
            Some(held) => held,
            None => self.reserve_elsewhere(arena, pmem, request, checkpoint_lsn)?,
        };
        Ok(Reservation::new(&self.layout, held))
    }

    /// Of an arena, after what waits in it was looked at in passing.
    #[inline]
    fn reserve_of<P: Pmem>(
        &self,
        arena: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Option<Held> {
        let mut arena = self.arena(arena);
        arena.advance(checkpoint_lsn, self.clock.now(), IN_PASSING);
        self.reserve_from(&mut arena, pmem, request, true)
    }

    #[inline]
    fn reserve_from<P: Pmem>(
        &self,
        arena: &mut Arena,
        pmem: &P,
        request: Request,
        is_patient: bool,
    ) -> Option<Held> {
        let held = arena.reserve(pmem, request, is_patient)?;
        Some(self.cut_if_last(arena, held, request))
    }

    /// A transaction keeps its reservation until it ends. So it does not get the whole of the last long extent.
    #[inline]
    fn cut_if_last(&self, arena: &mut Arena, held: Held, request: Request) -> Held {
        if !request.is_for_transaction || self.has_fresh.load(Ordering::Acquire) {
            return held;
        }
        Held { cut: arena.cut(&held, request), ..held }
    }

    /// A reservation is one free block: its [headers](Reservation::joining_headers) are durable, stored with this LSN. Gives back the lines
    /// behind its cut. If storing them failed, the caller [returns](Self::return_unused) the reservation.
    pub(crate) fn joined<P: Pmem>(&self, pmem: &P, reservation: &mut Reservation, lsn: Lsn) {
        reservation.joined(pmem, lsn);
        if let Place::Arena { arena, slot } = reservation.place
            && reservation.cut.is_some()
        {
            self.arena(arena as usize).return_rest(slot, reservation);
        }
    }

    /// Gives back what was reserved, for a transaction that did not commit.
    pub(crate) fn return_unused(&self, reservation: Reservation) {
        match reservation.place {
            Place::Arena { arena, slot } => {
                self.arena(arena as usize).return_unused(slot, &reservation, self.clock.now());
            }
            Place::Huge => self.return_huge(&reservation),
        }
    }

    /// Leaves what was reserved out of use until the heap is opened again: whether its headers are stored is not known.
    pub(crate) fn abandon(&self, reservation: Reservation) {
        match reservation.place {
            Place::Arena { arena, .. } => self.arena(arena as usize).abandon(&reservation),
            Place::Huge => self.pool.lock().held -= 1,
        }
    }

    /// The transaction committed with this LSN, and the headers are stored in place: blocks carved are allocated, and
    /// what was left over is free.
    pub(crate) fn settle(&self, reservation: Reservation, lsn: Lsn) {
        match reservation.place {
            Place::Arena { arena, slot } => {
                self.arena(arena as usize).settle(slot, &reservation, lsn, self.clock.now());
            }
            Place::Huge => self.settle_huge(&reservation),
        }
    }

    /// Where there is no room in the own arena: in other chunks, in other arenas, in what waits.
    #[cold]
    fn reserve_elsewhere<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Result<Held, SpaceError> {
        loop {
            if let Some(held) = self.reserve_fresh(own, pmem, request, checkpoint_lsn)? {
                return Ok(held);
            }
            let count = self.arenas.len();
            for other in (own + 1..own + count).map(|arena| arena % count) {
                if self.move_whole(other, own)
                    && let Some(held) = self.reserve_from(&mut self.arena(own), pmem, request, false)
                {
                    return Ok(held);
                }
                if let Some(held) = self.reserve_from(&mut self.arena(other), pmem, request, false) {
                    return Ok(held);
                }
            }
            let (found, is_cutting) = self.search(own, pmem, request, checkpoint_lsn);
            if !is_cutting || found.is_ok() {
                return found;
            }
            // Another thread is cutting its reservation, and returns the rest soon. It needs no lock that this thread holds.
            yield_now();
        }
    }

    /// In chunks that the pool has, and then in all of the own arena.
    fn reserve_fresh<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Result<Option<Held>, FenceError> {
        self.part_freed(pmem, checkpoint_lsn)?;
        // When all chunks are known there may be free blocks longer than one that have waited long enough.
        while self.supply(own, pmem)? || self.part_freed(pmem, checkpoint_lsn)? {
            if let Some(held) = self.reserve_from(&mut self.arena(own), pmem, request, true) {
                return Ok(Some(held));
            }
        }
        let mut own = self.arena(own);
        own.is_starved = true;
        Ok(self.reserve_from(&mut own, pmem, request, false))
    }

    /// In all arenas, whatever the hints say, while no chunk changes hands. The second value says whether a reservation was being cut in one
    /// of those that have no room.
    fn search<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> (Result<Held, SpaceError>, bool) {
        let pool = self.pool.lock();
        let (mut waiting, mut held, mut is_cutting) = (!pool.waiting.is_empty(), pool.held > 0, false);
        let count = self.arenas.len();
        for arena in (own..own + count).map(|arena| arena % count) {
            let mut arena = self.arena(arena);
            arena.advance(checkpoint_lsn, self.clock.now(), usize::MAX);
            if let Some(held) = arena.search(pmem, request) {
                return (Ok(self.cut_if_last(&mut arena, held, request)), false);
            }
            waiting |= arena.is_waiting();
            held |= arena.held > 0;
            is_cutting |= arena.cuts > 0;
        }
        (Err(SpaceError::Full { lines: u64::from(request.lines), waiting, held }), is_cutting)
    }

    /// What a block needs, if a chunk can have it.
    #[inline]
    fn request(&self, lines: u64, align_bytes: u64) -> Result<Request, SpaceError> {
        let end = chunk_lines(&self.layout);
        let possible = || {
            let lines = u32::try_from(lines).ok()?;
            let fits = align_bytes <= LINE_BYTES
                || align_bytes <= self.layout.chunk_bytes
                    && align(&self.layout, 0, 1, align_bytes)?.checked_add(lines)? <= end;
            let most = u32::try_from(align_bytes / LINE_BYTES).ok()?.saturating_sub(1);
            fits.then(|| Request {
                lines,
                align_bytes,
                roomy: lines.saturating_add(most),
                whole_up_to: 0,
                is_for_transaction: false,
            })
        };
        possible().ok_or(SpaceError::Alignment { lines, align_bytes })
    }

    /// The arena of the calling thread.
    #[inline]
    pub(super) fn own_arena(&self) -> usize {
        let (number, count) = (thread_number(), self.arenas.len());
        if number < count { number } else { number % count }
    }

    #[inline]
    pub(super) fn arena(&self, arena: usize) -> QuietGuard<'_, Arena> {
        self.arenas[arena].lock_intact()
    }

    /// Chunks of the heap.
    pub(crate) fn chunk_count(&self) -> u64 {
        self.homes.len() as u64
    }

    #[inline]
    pub(super) fn home(&self, chunk: u64) -> Home {
        let index = usize::try_from(chunk).expect("chunks of the heap");
        Home::from_word(self.homes[index].load(Ordering::Acquire))
    }

    pub(super) fn set_home(&self, chunk: u64, home: Home) {
        let index = usize::try_from(chunk).expect("chunks of the heap");
        self.homes[index].store(home.to_word(), Ordering::Release);
    }
}

/// A number for the calling thread, so that the threads of a process spread over the arenas. Nothing but speed depends
/// on it.
fn thread_number() -> usize {
    // Not loom's: a thread keeps its number from one heap to the next.
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            let new = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            number.set(Some(new));
            new
        })
    })
}
