//! The space of a heap, as its transactions see it: reserving, and what becomes of a reservation.

use super::arena::{Arena, IN_PASSING};
use super::chunk::ChunkMap;
use super::clock::Clock;
use super::error::SpaceError;
use super::finding::Request;
use super::pool::{Home, Pool};
use super::reservation::{Held, Place, Reservation, align, whole_up_to};
use super::scan::{chunk_lines, flush_headers, scan};
use crate::format::{LINE_BYTES, Stamp};
use crate::layout::Layout;
use crate::quiet_lock::{QuietGuard, QuietLock};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock_intact};
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
    pub(super) pool: Mutex<Pool>,
    pub(super) clock: Clock,
    /// This process made the heap.
    pub(super) is_new: bool,
}

impl Space {
    /// Reserves a free extent with room for a block of `lines` lines at a multiple of `align_bytes`, from the calling
    /// thread's arena if that has one.
    ///
    /// Of what was freed, only what was freed up to the stamp `horizon` is handed out.
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
        horizon: Stamp,
    ) -> Result<Reservation, SpaceError> {
        self.reserve_in(self.own_arena(), pmem, lines, align_bytes, horizon)
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
        horizon: Stamp,
    ) -> Option<Reservation> {
        assert!(lines > 0, "a block has a line at least");
        assert!(align_bytes.is_power_of_two(), "alignments are powers of two");
        if lines >= self.layout.chunk_lines() {
            return None;
        }
        let request = self.request(lines, align_bytes).ok()?;
        let held = self.reserve_of(self.own_arena(), pmem, request, horizon)?;
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
        horizon: Stamp,
    ) -> Result<Reservation, SpaceError> {
        assert!(lines > 0, "a block has a line at least");
        assert!(align_bytes.is_power_of_two(), "alignments are powers of two");
        if lines >= self.layout.chunk_lines() {
            return self.reserve_huge(arena, pmem, lines, align_bytes, horizon);
        }
        // With a log, several blocks would have to be made one first, which costs more than a header.
        let is_logged = horizon != Stamp::MAX;
        let request = self.request(lines, align_bytes)?;
        let is_anywhere = request.roomy == request.lines;
        let whole_up_to = if is_logged || !is_anywhere { 0 } else { whole_up_to(request.lines) };
        let request = Request { whole_up_to, ..request };
        let held = match self.reserve_of(arena, pmem, request, horizon) {
            Some(held) => held,
            None => self.reserve_elsewhere(arena, pmem, request, horizon)?,
        };
        Ok(Reservation::new(&self.layout, held))
    }

    /// Of an arena, after what waits in it was looked at in passing.
    #[inline]
    fn reserve_of<P: Pmem>(&self, arena: usize, pmem: &P, request: Request, horizon: Stamp) -> Option<Held> {
        let mut arena = self.arena(arena);
        arena.advance(horizon, self.clock.now(), IN_PASSING);
        arena.reserve(pmem, request, true)
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

    /// The transaction committed with this stamp, and the headers are stored in place: blocks carved are allocated, and
    /// what was left over is free.
    pub(crate) fn settle(&self, reservation: Reservation, stamp: Stamp) {
        match reservation.place {
            Place::Arena { arena, slot } => {
                self.arena(arena as usize).settle(slot, &reservation, stamp, self.clock.now());
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
        horizon: Stamp,
    ) -> Result<Held, SpaceError> {
        self.part_freed(pmem, horizon)?;
        loop {
            if !self.supply(own, pmem)? {
                // All chunks are known now, and maybe free blocks longer than one, which have waited long enough.
                if self.part_freed(pmem, horizon)? {
                    continue;
                }
                break;
            }
            if let Some(held) = self.arena(own).reserve(pmem, request, true) {
                return Ok(held);
            }
        }
        {
            let mut own = self.arena(own);
            own.is_starved = true;
            if let Some(held) = own.reserve(pmem, request, false) {
                return Ok(held);
            }
        }
        let count = self.arenas.len();
        for other in (own + 1..own + count).map(|arena| arena % count) {
            if self.move_whole(other, own)
                && let Some(held) = self.arena(own).reserve(pmem, request, false)
            {
                return Ok(held);
            }
            if let Some(held) = self.arena(other).reserve(pmem, request, false) {
                return Ok(held);
            }
        }
        let (mut waiting, mut held) = (false, false);
        for arena in (own..own + count).map(|arena| arena % count) {
            let mut arena = self.arena(arena);
            arena.advance(horizon, self.clock.now(), usize::MAX);
            if let Some(held) = arena.search(pmem, request) {
                return Ok(held);
            }
            waiting |= !arena.waiting.is_empty();
            held |= arena.held > 0;
        }
        let pool = lock_intact(&self.pool);
        waiting |= !pool.waiting.is_empty();
        held |= pool.held > 0;
        Err(SpaceError::Full { lines: u64::from(request.lines), waiting, held })
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
            fits.then(|| Request { lines, align_bytes, roomy: lines.saturating_add(most), whole_up_to: 0 })
        };
        possible().ok_or(SpaceError::Alignment { lines, align_bytes })
    }

    /// Takes a chunk from the pool into an arena: a fresh one and one not looked at yet in turn, while there are both.
    ///
    /// A chunk that was in use before the heap was opened may have holes, which are better filled than new chunks begun. But
    /// only one is looked at for each new chunk, for looking takes time; and none before the first, as somebody may wait for that.
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// As [`learn_through`](Self::learn_through), and [`adopt_unscanned`](Self::adopt_unscanned).
    pub(super) fn supply<P: Pmem>(&self, arena: usize, pmem: &P) -> Result<bool, FenceError> {
        let mut pool = lock_intact(&self.pool);
        let rather_unscanned = pool.is_unscanned_next;
        pool.is_unscanned_next = !rather_unscanned;
        let is_enough =
            |pool: &Pool| !pool.fresh.is_empty() || rather_unscanned && !pool.unscanned.is_empty();
        while !is_enough(&pool) && self.learn_next(&mut pool, pmem) {}
        self.fence_learned(&mut pool, pmem)?;
        let unscanned = pool.unscanned.keys().next().copied();
        match (unscanned, pool.fresh.first().copied()) {
            (Some(chunk), fresh) if rather_unscanned || fresh.is_none() => {
                self.adopt_unscanned(&mut pool, arena, pmem, chunk)?;
            }
            (_, Some(chunk)) => {
                pool.fresh.remove(&chunk);
                self.adopt(&pool, arena, ChunkMap::whole(chunk, chunk_lines(&self.layout)));
            }
            (_, None) => return Ok(false),
        }
        Ok(true)
    }

    /// Looks at a chunk, and gives it to an arena.
    ///
    /// # Errors
    /// When the fence fails. The chunk stays where it is then.
    ///
    /// # Durability
    /// One fence, for what a killed process may have left visible and not durable: all headers of the chunk.
    pub(super) fn adopt_unscanned<P: Pmem>(
        &self,
        pool: &mut Pool,
        arena: usize,
        pmem: &P,
        chunk: u64,
    ) -> Result<(), FenceError> {
        if let Some(&start) = pool.unscanned.get(&chunk) {
            let mut damages = Vec::new();
            let map = scan(pmem, &self.layout, self.chunk_count(), chunk, start, &mut damages);
            if !self.is_new {
                flush_headers(pmem, &self.layout, &map);
                pool.fence(pmem)?;
            }
            pool.unscanned.remove(&chunk);
            pool.damages.append(&mut damages);
            self.adopt(pool, arena, map);
        }
        Ok(())
    }

    /// Gives a chunk to an arena. Its home changes under the locks of both, and is looked at under either.
    pub(super) fn adopt(&self, _pool: &Pool, arena: usize, map: ChunkMap) {
        let chunk = map.chunk;
        let mut to = self.arena(arena);
        let slot = to.adopt(map);
        let arena = u32::try_from(arena).expect("there are fewer arenas");
        self.set_home(chunk, Home::Arena { arena, slot });
    }

    /// Takes a chunk from an arena, if nothing of it is in use. Under the pool's lock, until it has another home.
    pub(super) fn evict(&self, from: &mut Arena, slot: u32) -> Option<Box<ChunkMap>> {
        let map = from.evict(slot)?;
        self.set_home(map.chunk, Home::Covered);
        Some(map)
    }

    /// Moves a chunk of which nothing is in use from one arena to another.
    fn move_whole(&self, from: usize, to: usize) -> bool {
        let pool = lock_intact(&self.pool);
        let mut other = self.arena(from);
        let whole = other.slots.iter().position(|slot| slot.as_ref().is_some_and(|map| map.is_whole()));
        let evicted = whole.and_then(|slot| self.evict(&mut other, u32::try_from(slot).ok()?));
        let Some(map) = evicted else { return false };
        drop(other);
        self.adopt(&pool, to, *map);
        true
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
