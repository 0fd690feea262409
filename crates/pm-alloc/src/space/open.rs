//! Making chunks, and taking up those that are there.

use super::arena::Arena;
use super::clock::Clock;
use super::heap_space::Space;
use super::pool::{Home, HugeBlock, Pool};
use super::scan::{chunk_lines, header_word, read};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, Stamp};
use crate::layout::Layout;
use crate::quiet_lock::QuietLock;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, lock_intact};
use core::ops::Range;
use core::time::Duration;
use pm_core::Pmem;

/// Arenas are made for so many chunks each, at least.
const CHUNKS_PER_ARENA: u64 = 8;

/// How a heap gives its space away.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceOptions {
    /// How long freed blocks wait at least before they are handed out again, so that no line is written too often.
    pub(crate) wait: Duration,
    /// How many arenas there are, at least one: as many as there are processors, if this is not set.
    pub(crate) arena_count: Option<u32>,
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
            pool: Mutex::new(Pool::default()),
            clock: Clock::new(options.wait),
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
    pub(crate) fn scan_some<P: Pmem>(&self, pmem: &P, chunks: usize) -> usize {
        let arena = self.own_arena();
        for _ in 0..chunks {
            let mut pool = lock_intact(&self.pool);
            while pool.unscanned.is_empty() && self.learn_next(&mut pool, pmem) {}
            let Some((&chunk, _)) = pool.unscanned.first_key_value() else { break };
            self.adopt_unscanned(&mut pool, arena, pmem, chunk);
        }
        self.unscanned(&lock_intact(&self.pool))
    }

    /// How many chunks were not looked at yet.
    pub(super) fn unscanned(&self, pool: &Pool) -> usize {
        let unknown = self.chunk_count().saturating_sub(pool.unknown);
        pool.unscanned.len() + usize::try_from(unknown).expect("chunks have an index")
    }

    /// Learns what is with the chunks up to this one.
    pub(super) fn learn_through<P: Pmem>(&self, pool: &mut Pool, pmem: &P, chunk: u64) {
        while pool.unknown <= chunk && self.learn_next(pool, pmem) {}
    }

    /// Learns what is with the next chunk, and those that it lies over. `false`: all are known.
    pub(super) fn learn_next<P: Pmem>(&self, pool: &mut Pool, pmem: &P) -> bool {
        let is_one = pool.unknown < self.chunk_count();
        if is_one {
            pool.unknown = self.take_up(pool, pmem, pool.unknown);
        }
        is_one
    }

    /// Learns from its first header what is with a chunk, and says which is the next one to look at.
    fn take_up<P: Pmem>(&self, pool: &mut Pool, pmem: &P, chunk: u64) -> u64 {
        let in_chunk = chunk_lines(&self.layout);
        let Some(header) = read(pmem, &self.layout, chunk, 1).1 else {
            pool.unscanned.insert(chunk, 1);
            return chunk + 1;
        };
        if header == BlockHeader::new(BlockState::Free, in_chunk - 1) {
            pool.fresh.insert(chunk);
            return chunk + 1;
        }
        let (last, line) = self.end_of(chunk, header.lines);
        // Damaged, if it does not end in the heap.
        let is_huge = header.lines >= in_chunk && last < self.chunk_count();
        if !is_huge {
            pool.unscanned.insert(chunk, 1);
            return chunk + 1;
        }
        let is_live = header.state == BlockState::Allocated;
        pool.huge.insert(chunk, HugeBlock { lines: header.lines, is_live });
        self.set_home(chunk, Home::Huge);
        if header.state == BlockState::Free {
            self.wait_huge(pool, chunk, header.lines, Stamp::ZERO);
        }
        for covered in chunk + 1..last {
            self.set_home(covered, Home::Covered);
        }
        if line == 1 {
            return last;
        }
        if line < in_chunk {
            pool.unscanned.insert(last, line);
        } else {
            self.set_home(last, Home::Covered);
        }
        last + 1
    }
}
