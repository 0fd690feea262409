//! Making chunks, and taking up those that are there.

use super::arena::Arena;
use super::clock::Clock;
use super::heap_space::Space;
use super::pool::{Home, HugeBlock, Pool};
use super::scan::{Content, Start, chunk_lines, header_offset, header_word, read};
use super::unlogged::Starved;
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, Lsn};
use crate::layout::Layout;
use crate::quiet_lock::QuietLock;
use crate::sync::IntactMutex;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use core::ops::Range;
use core::time::Duration;
use pm_core::{FenceError, Pmem};

/// Arenas are made for so many chunks each, at least.
const CHUNKS_PER_ARENA: u64 = 8;

/// How a heap gives its space away.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceOptions {
    /// How long freed blocks wait at least before they are handed out again, so that no line is written too often.
    pub(crate) wait: Duration,
    /// How many arenas there are, at least one: as many as there are processors, if this is not set.
    pub(crate) arena_count: Option<u32>,
    /// Whether this process made the heap, and fenced it: then nothing in it is older than that, and visible without being durable.
    pub(crate) is_new: bool,
}

impl Space {
    /// Makes chunks that are one free block each.
    ///
    /// # Durability
    /// Stores and flushes. They are durable with the caller's next fence.
    pub(crate) fn format_chunks<P: Pmem>(pmem: &P, layout: &Layout, chunks: Range<u64>) {
        let end = chunk_lines(layout);
        for chunk in chunks {
            let first = BlockHeader::new(BlockState::Free, end - 1);
            for (line, header) in [(1, first), (end, BlockHeader::new(BlockState::End, 0))] {
                let (offset, word) = header_word(layout, chunk, line, header);
                pmem.store_u64(offset, word);
                pmem.flush(offset, BLOCK_HEADER_BYTES);
            }
        }
    }

    /// Takes up the space of a heap, after its recovery. Looks at nothing: at a chunk when it is first needed. Writes nothing.
    pub(crate) fn open(layout: Layout, chunk_count: u64, options: SpaceOptions) -> Self {
        // The system is asked for its processors only where the heap could use more than one: that reads many files.
        let processors = || std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let by_default = || match chunk_count / CHUNKS_PER_ARENA {
            0 | 1 => 1,
            most => processors().min(most),
        };
        let count = options.arena_count.map_or_else(by_default, u64::from).clamp(1, 1 << 16);
        let arenas = (0..count).map(|number| {
            let number = u32::try_from(number).expect("at most 65,536");
            QuietLock::new(Arena::new(layout, number))
        });
        let mut space = Self {
            layout,
            homes: Vec::new(),
            arenas: arenas.collect(),
            pool: IntactMutex::new(Pool::default()),
            has_fresh: AtomicBool::new(false),
            starved: Starved::new(),
            clock: Clock::new(options.wait),
            is_new: options.is_new,
        };
        space.extend(chunk_count);
        space
    }

    /// Takes up chunks behind those that there were, so that there are `chunk_count`.
    pub(crate) fn extend(&mut self, chunk_count: u64) {
        let more = self.chunk_count()..chunk_count;
        self.homes.extend(more.map(|_| AtomicU64::new(Home::Pool.to_word())));
    }

    /// Looks at up to `chunks` chunks that were not looked at yet, and says how many are left.
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// As [`learn_through`](Self::learn_through).
    pub(crate) fn scan_some<P: Pmem>(&self, pmem: &P, chunks: usize) -> Result<usize, FenceError> {
        let arena = self.own_arena();
        for _ in 0..chunks {
            let mut pool = self.pool.lock();
            while pool.unscanned.is_empty() && self.learn_next(&mut pool, pmem) {}
            self.fence_learned(&mut pool, pmem)?;
            let Some((&chunk, _)) = pool.unscanned.first_key_value() else { break };
            self.adopt_unscanned(&mut pool, arena, pmem, chunk)?;
        }
        Ok(self.unscanned(&self.pool.lock()))
    }

    /// How many chunks were not looked at yet.
    pub(super) fn unscanned(&self, pool: &Pool) -> usize {
        let unknown = self.chunk_count().saturating_sub(pool.unknown.next);
        pool.unscanned.len() + usize::try_from(unknown).expect("chunks have an index")
    }

    /// Learns what is with the chunks up to this one.
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// What a killed process left in the caches is visible and may not be durable. So the headers that were read are flushed, and fenced
    /// before anything relies on them: one fence, unless the heap was made by this process.
    pub(super) fn learn_through<P: Pmem>(
        &self,
        pool: &mut Pool,
        pmem: &P,
        chunk: u64,
    ) -> Result<(), FenceError> {
        while pool.unknown.next <= chunk && self.learn_next(pool, pmem) {}
        self.fence_learned(pool, pmem)
    }

    /// Learns what is with the next chunk, and those that it lies over. `false`: all are known. To be followed by
    /// [`fence_learned`](Self::fence_learned).
    pub(super) fn learn_next<P: Pmem>(&self, pool: &mut Pool, pmem: &P) -> bool {
        let Some((chunk, content)) = pool.unknown.next(pmem, &self.layout, self.chunk_count()) else {
            return false;
        };
        let is_huge = matches!(content, Content::Huge(..));
        if !self.is_new {
            pmem.flush(header_offset(&self.layout, chunk, 1), BLOCK_HEADER_BYTES);
            pool.is_unfenced = true;
        }
        match content {
            Content::Fresh => drop(pool.fresh.insert(chunk)),
            // A block longer than a chunk ends with it.
            Content::Headers(Start::Chain(first)) if first == chunk_lines(&self.layout) => {
                self.set_home(chunk, Home::Covered);
            }
            Content::Headers(start) => drop(pool.unscanned.insert(chunk, start)),
            Content::Huge(header, last) => self.take_up(pool, pmem, chunk, header, last),
        }
        if is_huge && pool.unknown.next < self.chunk_count() {
            // Where the block ends, so that both change together.
            self.learn_next(pool, pmem);
        }
        true
    }

    /// Makes what was learned durable, before anything relies on it.
    ///
    /// # Errors
    /// When the fence fails.
    ///
    /// # Durability
    /// One fence, if anything was learned. First headers that a killed process left below a block longer than a chunk are zeroed by it.
    pub(super) fn fence_learned<P: Pmem>(&self, pool: &mut Pool, pmem: &P) -> Result<(), FenceError> {
        if pool.is_unfenced {
            pool.check()?;
            for (offset, word) in pool.stale.drain(..) {
                // Another thread may be storing to the block, and what it stores stays.
                if pmem.compare_exchange_u64(offset, word, 0).is_ok() {
                    pmem.flush(offset, BLOCK_HEADER_BYTES);
                }
            }
            pool.fence(pmem)?;
            pool.is_unfenced = false;
        }
        Ok(())
    }

    /// Takes up a block longer than a chunk, which ends in the chunk `last`.
    fn take_up<P: Pmem>(&self, pool: &mut Pool, pmem: &P, chunk: u64, header: BlockHeader, last: u64) {
        let is_live = header.state == BlockState::Allocated;
        let is_lost = header.state == BlockState::Lost;
        pool.huge.insert(chunk, HugeBlock { lines: header.lines, is_live, is_lost });
        self.set_home(chunk, Home::Huge);
        if header.state == BlockState::Free {
            Self::wait_for_parting(pool, chunk, header.lines, Lsn::ZERO);
        }
        for covered in chunk + 1..last {
            self.set_home(covered, Home::Covered);
        }
        if is_live && !self.is_new {
            // A process that is killed while it makes a block longer leaves first headers below it, which would count if the block's own
            // header were corrupted; or zeroes that are not durable.
            for covered in chunk + 1..=last {
                let (word, header) = read(pmem, &self.layout, covered, 1);
                let (offset, in_chunk) = (header_offset(&self.layout, covered, 1), chunk_lines(&self.layout));
                if header.is_some_and(|header| header.state == BlockState::Free && header.lines < in_chunk) {
                    pool.stale.push((offset, word));
                } else {
                    pmem.flush(offset, BLOCK_HEADER_BYTES);
                }
            }
        }
    }
}
