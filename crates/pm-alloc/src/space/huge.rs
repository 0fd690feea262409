//! Blocks longer than a chunk.
//!
//! Such a block starts at line 1 of its first chunk, and lies over all of the next ones but the last, where it may end
//! anywhere; the chain of the last chunk goes on there. Before it is handed out, its chunks become one free block, as
//! any free blocks do that a block will be laid over ([`Reservation::joining_headers`]), up to the end of the last chunk. A
//! freed block is parted into chunks in the reverse order: first what goes into its inside, and when that is durable,
//! the header of the first chunk.
//!
//! That is stored without the log. No entry above the checkpoint LSN aims there: what was allocated there was freed below the
//! checkpoint LSN, and each header that was ever logged there was logged before that, with the block in front of it. The first
//! header of a chunk has none in front; it is logged with a block behind it, or with a gap, or a join, which wait as
//! freed blocks do. A block that would end right at the first header of a chunk is made a line longer, for this reason.

use super::chunk::ChunkMap;
use super::error::SpaceError;
use super::heap_space::Space;
use super::pool::{Home, HugeBlock, Pool};
use super::reservation::{Held, Place, Reservation, Waiting, huge_lines};
use super::scan::{Start, chunk_lines, end_of, header_word};
use crate::format::{BLOCK_HEADER_BYTES, BLOCK_LINES_MAX, BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::sync::atomic::Ordering;
use core::ops::Range;
use pm_core::{FenceError, Pmem};

impl Space {
    /// As [`Space::reserve`], for more lines than a chunk has for blocks.
    #[cold]
    pub(super) fn reserve_huge<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        checkpoint_lsn: Lsn,
    ) -> Result<Reservation, SpaceError> {
        let in_chunk = u64::from(chunk_lines(&self.layout));
        let taken = huge_lines(&self.layout, lines);
        // Free, it has all lines of its chunks.
        let count = taken.saturating_add(1).div_ceil(in_chunk);
        let longest = u64::from(BLOCK_LINES_MAX).min(self.chunk_count() * in_chunk - 1);
        let whole = count.saturating_mul(in_chunk) - 1;
        if whole > longest {
            return Err(SpaceError::TooLong { lines, max_lines: longest });
        }
        if align_bytes > LINE_BYTES {
            return Err(SpaceError::Alignment { lines, align_bytes });
        }
        for arena in 0..self.arenas.len() {
            self.arena(arena).advance(checkpoint_lsn, self.clock.now(), usize::MAX);
        }
        let mut pool = self.pool.lock();
        self.learn_through(&mut pool, pmem, u64::MAX)?;
        self.part_waiting(&mut pool, pmem, checkpoint_lsn)?;
        let mut found = self.claim(&mut pool, count);
        if found.is_none() {
            while let Some((&chunk, _)) = pool.unscanned.first_key_value() {
                self.adopt_unscanned(&mut pool, own, pmem, chunk)?;
            }
            found = self.claim(&mut pool, count);
        }
        let Some(chunk) = found else {
            let waiting = !pool.waiting.is_empty();
            let others = self.arenas.iter().map(|arena| {
                let arena = arena.lock_intact();
                (arena.is_waiting(), arena.held > 0)
            });
            let (waiting, held) = others.fold((waiting, pool.held > 0), |a, b| (a.0 | b.0, a.1 | b.1));
            return Err(SpaceError::Full { lines, waiting, held });
        };
        let whole = u32::try_from(whole).expect("no more than a header can say");
        pool.held += 1;
        let held = Held { place: Place::Huge, chunk, start: 1, end: 1 + whole, is_several: true, cut: None };
        Ok(Reservation::new(&self.layout, held))
    }

    /// Parts freed blocks that have waited into chunks. Whether there were any.
    pub(super) fn part_freed<P: Pmem>(&self, pmem: &P, checkpoint_lsn: Lsn) -> Result<bool, FenceError> {
        self.part_waiting(&mut self.pool.lock(), pmem, checkpoint_lsn)
    }

    /// Keeps a freed block until it may be parted.
    pub(super) fn wait_huge(&self, pool: &mut Pool, chunk: u64, lines: u32, lsn: Lsn) {
        let due_ns = self.clock.now().due_ns();
        pool.waiting.push_back(waiting(chunk, lines, lsn, due_ns));
    }

    /// Keeps a free block that no transaction of this process has freed until a chunk of it is needed.
    pub(super) fn wait_for_parting(pool: &mut Pool, chunk: u64, lines: u32, lsn: Lsn) {
        // In front, where none that is not due yet delays it.
        pool.waiting.push_front(waiting(chunk, lines, lsn, 0));
    }

    /// As [`Space::settle`].
    pub(super) fn settle_huge(&self, reservation: &Reservation) {
        if !reservation.is_carved() {
            return self.return_huge(reservation);
        }
        let mut pool = self.pool.lock();
        pool.held -= 1;
        let chunk = reservation.chunk;
        let block = HugeBlock { lines: reservation.cursor - 1, is_live: true, is_lost: false };
        pool.huge.insert(chunk, block);
        self.set_home(chunk, Home::Huge);
        if reservation.cursor < reservation.end {
            let (last, line) = end_of(&self.layout, chunk, block.lines);
            pool.unscanned.insert(last, Start::Chain(line));
            self.set_home(last, Home::Pool);
        }
    }

    /// As [`Space::return_unused`]. It is one free block until somebody needs a chunk of it.
    pub(super) fn return_huge(&self, reservation: &Reservation) {
        let mut pool = self.pool.lock();
        pool.held -= 1;
        let lines = reservation.end - 1;
        let Some(lsn) = reservation.joined else {
            let count = u64::from(reservation.end) / self.layout.chunk_lines();
            return self.give_back(&mut pool, reservation.chunk..reservation.chunk + count);
        };
        pool.huge.insert(reservation.chunk, HugeBlock { lines, is_live: false, is_lost: false });
        self.set_home(reservation.chunk, Home::Huge);
        Self::wait_for_parting(&mut pool, reservation.chunk, lines, lsn);
    }

    /// Takes so many chunks in a row of which nothing is in use, and says which is the first.
    fn claim(&self, pool: &mut Pool, count: u64) -> Option<u64> {
        let mut run = 0;
        for chunk in 0..self.chunk_count() {
            run = if self.is_whole(pool, chunk) { run + 1 } else { 0 };
            if run == count {
                let first = chunk + 1 - count;
                match self.take_run(pool, first..chunk + 1) {
                    Ok(()) => return Some(first),
                    // An arena handed out a part of one meanwhile.
                    Err(taken) => run = chunk - taken,
                }
            }
        }
        None
    }

    fn is_whole(&self, pool: &Pool, chunk: u64) -> bool {
        match self.home(chunk) {
            Home::Arena { arena, slot } => self.arena(arena as usize).map(slot).is_whole(),
            Home::Pool => pool.fresh.contains(&chunk),
            Home::Covered | Home::Huge => false,
        }
    }

    /// Takes these chunks, or none and says which one cannot be had.
    pub(super) fn take_run(&self, pool: &mut Pool, chunks: Range<u64>) -> Result<(), u64> {
        for chunk in chunks.clone() {
            let is_taken = match self.home(chunk) {
                Home::Arena { arena, slot } => self.evict(&mut self.arena(arena as usize), slot).is_some(),
                _ => pool.fresh.remove(&chunk),
            };
            if !is_taken {
                self.give_back(pool, chunks.start..chunk);
                return Err(chunk);
            }
            self.set_home(chunk, Home::Covered);
        }
        self.has_fresh.store(!pool.fresh.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Gives chunks to the pool, each of which may be several free blocks.
    pub(super) fn give_back(&self, pool: &mut Pool, chunks: Range<u64>) {
        for chunk in chunks {
            pool.unscanned.insert(chunk, Start::Chain(1));
            self.set_home(chunk, Home::Pool);
        }
    }

    fn part_waiting<P: Pmem>(
        &self,
        pool: &mut Pool,
        pmem: &P,
        checkpoint_lsn: Lsn,
    ) -> Result<bool, FenceError> {
        let now = self.clock.now();
        let count = pool.waiting.len();
        let is_ready = |freed: &mut Waiting| freed.lsn <= checkpoint_lsn && now.is_due(freed.due_ns);
        while let Some(freed) = pool.waiting.pop_front_if(is_ready) {
            if let Err(error) = self.part(pool, pmem, u64::from(freed.at), freed.lines) {
                pool.waiting.push_front(freed);
                return Err(error);
            }
        }
        Ok(pool.waiting.len() < count)
    }

    /// Makes chunks again of a free block longer than one.
    fn part<P: Pmem>(&self, pool: &mut Pool, pmem: &P, chunk: u64, lines: u32) -> Result<(), FenceError> {
        pool.check()?;
        let (last, line) = end_of(&self.layout, chunk, lines);
        part_into_chunks(pmem, &self.layout, chunk, lines, || pool.fence(pmem))?;
        pool.huge.remove(&chunk);
        for free in chunk..last {
            pool.fresh.insert(free);
            self.set_home(free, Home::Pool);
        }
        self.give_front(pool, last, line);
        Ok(())
    }

    /// The lines before `line` of a chunk are free now; the chain starts at line 1 again.
    pub(super) fn give_front(&self, pool: &mut Pool, chunk: u64, line: u32) {
        match self.home(chunk) {
            // It lay there up to the end.
            Home::Covered => {
                pool.fresh.insert(chunk);
                self.set_home(chunk, Home::Pool);
            }
            Home::Pool => {
                pool.unscanned.entry(chunk).and_modify(|start| *start = Start::Chain(1));
            }
            Home::Arena { arena, slot } if line > 1 => {
                let mut arena = self.arena(arena as usize);
                let map: &mut ChunkMap = arena.map(slot);
                map.first = 1;
                map.starts.set(1);
                if let Some(extent) = map.release(1..line) {
                    arena.hint(slot, extent);
                }
            }
            Home::Arena { .. } | Home::Huge => {}
        }
    }
}

fn waiting(chunk: u64, lines: u32, lsn: Lsn, due_ns: u64) -> Waiting {
    let at = u32::try_from(chunk).expect("there are fewer chunks");
    Waiting { at, line: 1, lines, lsn, due_ns }
}

/// Stores the headers of chunks over a free block longer than one: first those inside of it, and when these are
/// durable, that of its first chunk.
///
/// # Durability
/// Two fences. A crash leaves the free block or its chunks.
pub(super) fn part_into_chunks<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    chunk: u64,
    lines: u32,
    mut fence: impl FnMut() -> Result<(), FenceError>,
) -> Result<(), FenceError> {
    let in_chunk = chunk_lines(layout);
    let (last, line) = end_of(layout, chunk, lines);
    let store = |chunk, line, header| {
        let (offset, word) = header_word(layout, chunk, line, header);
        pmem.store_u64(offset, word);
        pmem.flush(offset, BLOCK_HEADER_BYTES);
    };
    let whole = BlockHeader::new(BlockState::Free, in_chunk - 1);
    for covered in chunk..last {
        store(covered, in_chunk, BlockHeader::new(BlockState::End, 0));
        if covered > chunk {
            store(covered, 1, whole);
        }
    }
    if line > 1 {
        store(last, 1, BlockHeader::new(BlockState::Free, line - 1));
    }
    fence()?;
    store(chunk, 1, whole);
    fence()
}
