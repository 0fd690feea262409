//! Blocks that become longer or shorter where they are, with no log, for a plain `malloc` over the heap.
//!
//! One word decides: the block's own header. What the chain needs behind the block's new end is stored before it, in lines that
//! are inside of one block of the chain until then, so a process that is killed in between leaves a whole chain.

use super::error::FreeError;
use super::finding::verify;
use super::free::Purpose;
use super::heap_space::Space;
use super::pool::{Home, HugeBlock, Pool};
use super::reservation::huge_lines;
use super::scan::{Start, chunk_lines, end_of, header_offset, header_word};
use crate::format::{BLOCK_HEADER_BYTES, BLOCK_LINES_MAX, BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use core::cell::OnceCell;
use core::ops::RangeInclusive;
use pm_core::{FenceError, Pmem};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Stores headers one after the other, each durable before the next if so wished.
struct Headers<'p, P> {
    pmem: &'p P,
    layout: &'p Layout,
    durable: bool,
}

impl<P: Pmem> Headers<'_, P> {
    /// After an error nothing more is to be stored.
    fn store(&self, chunk: u64, line: u32, state: BlockState, lines: u32) -> Result<(), FenceError> {
        let (offset, word) = header_word(self.layout, chunk, line, BlockHeader::new(state, lines));
        self.store_u64(offset, word)
    }

    fn store_u64(&self, offset: u64, word: u64) -> Result<(), FenceError> {
        self.pmem.store_u64(offset, word);
        if self.durable { self.pmem.persist(offset, BLOCK_HEADER_BYTES) } else { Ok(()) }
    }
}

/// Why a block is not as long as was wished.
#[derive(Debug)]
pub(crate) enum ResizeError {
    /// It is no block.
    Free(FreeError),
    /// It has another length now, and that could not be made durable.
    Fence(FenceError),
}

impl From<FreeError> for ResizeError {
    fn from(error: FreeError) -> Self {
        Self::Free(error)
    }
}

impl From<FenceError> for ResizeError {
    fn from(error: FenceError) -> Self {
        Self::Fence(error)
    }
}

impl Space {
    /// Makes the block at `payload` as many lines long as `wanted` ends with, or at least as it begins with, without moving it, and says
    /// how many it has then. `None` if it cannot be: what lies behind is in use, or only another place will do. Before anything is stored,
    /// `ensure` is asked whether these lines, from an offset on, can be stored to.
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free), and when a fence fails.
    ///
    /// # Durability
    /// A process that is killed leaves a whole chain, with the block as long as before or as it is now. If `durable`, so does a crash
    /// of the machine, at a fence for each of the one or two headers that are stored, and for those of chunks.
    pub(crate) fn resize_unlogged<P: Pmem>(
        &self,
        pmem: &P,
        payload: u64,
        wanted: RangeInclusive<u64>,
        durable: bool,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u32>, ResizeError> {
        // A panic of `ensure` counts as a no, and goes on when no lock is held: nothing is half changed.
        let panicked = OnceCell::new();
        let ensure = |offset, len_bytes| {
            let asked = || catch_unwind(AssertUnwindSafe(|| ensure(offset, len_bytes)));
            // Once it has panicked, it is not asked again.
            panicked.get().is_none() && asked().unwrap_or_else(|panic| panicked.set(panic).is_err())
        };
        let resized = self.resize_ensured(pmem, payload, wanted, durable, ensure);
        match panicked.into_inner() {
            Some(panic) => resume_unwind(panic),
            None => resized,
        }
    }

    fn resize_ensured<P: Pmem>(
        &self,
        pmem: &P,
        payload: u64,
        wanted: RangeInclusive<u64>,
        durable: bool,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u32>, ResizeError> {
        let (chunk, line) = self.locate(payload)?;
        let headers = Headers { pmem, layout: &self.layout, durable };
        loop {
            match self.home(chunk) {
                Home::Huge => {
                    let mut pool = self.pool.lock();
                    if self.home(chunk) == Home::Huge {
                        return self.resize_huge(&mut pool, headers, payload, wanted, ensure);
                    }
                }
                home @ Home::Arena { arena, slot } => {
                    let mut guard = self.arena(arena as usize);
                    if self.home(chunk) != home {
                        continue;
                    }
                    let block = self.find_in(&mut guard, pmem, slot, line, Purpose::Look)?.0;
                    let (layout, now) = (self.layout, self.clock.now());
                    let ends =
                        [*wanted.start(), *wanted.end()].map(|lines| u64::from(line).saturating_add(lines));
                    let [least, most] = ends.map(|end| u32::try_from(end).unwrap_or(u32::MAX));
                    let map = guard.map(slot);
                    if line >= map.severed_from {
                        // What lies behind it, and inside of it, is not known: nothing is stored there.
                        return Ok((least <= block.end).then_some(block.end - line));
                    }
                    if most < block.end {
                        headers.store(chunk, most, BlockState::Free, block.end - most)?;
                        // What was stored last is visible, even if its fence fails: a copy for a child is made by the map.
                        let stored = headers.store(chunk, line, BlockState::Allocated, most - line);
                        map.starts.set(most);
                        guard.wait(slot, most, block.end - most, Lsn::ZERO, now);
                        return Ok(stored.map(|()| Some(most - line))?);
                    }
                    if least <= block.end {
                        return Ok(Some(block.end - line));
                    }
                    let free_end = map.extent_from(block.end).unwrap_or(block.end);
                    if free_end < least {
                        return Ok(None);
                    }
                    let mut end = most.min(free_end);
                    // Of the free block that it ends in, something is left over, unless that is hardly anything.
                    let rest_end = map.next_start(end - 1);
                    if rest_end - end <= (end - line) / 64 {
                        end = rest_end;
                    }
                    let offset = |line: u32| layout.chunk_offset(chunk) + u64::from(line) * LINE_BYTES;
                    if verify(pmem, &layout, map, block.end..rest_end).is_some()
                        || !ensure(offset(block.end), offset(end.max(block.end)) - offset(block.end))
                    {
                        return Ok(None);
                    }
                    if end < rest_end {
                        headers.store(chunk, end, BlockState::Free, rest_end - end)?;
                    }
                    let stored = headers.store(chunk, line, BlockState::Allocated, end - line);
                    map.hold(block.end..end);
                    map.starts.clear_range(block.end..end);
                    if end < rest_end {
                        map.starts.set(end);
                    }
                    guard.hint_behind(slot, end);
                    return Ok(stored.map(|()| Some(end - line))?);
                }
                Home::Pool | Home::Covered => {
                    // A chunk that was not looked at yet is by this, or the block is none.
                    self.usable_bytes(pmem, payload)?;
                }
            }
        }
    }

    /// The same of a block longer than a chunk.
    fn resize_huge<P: Pmem>(
        &self,
        pool: &mut Pool,
        headers: Headers<'_, P>,
        payload: u64,
        wanted: RangeInclusive<u64>,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u32>, ResizeError> {
        let (chunk, line) = self.locate(payload)?;
        if line != 1 {
            return Err(FreeError::NotABlock { offset: payload }.into());
        }
        let old = self.find_huge_in(pool, headers.pmem, chunk, payload)?;
        if *wanted.end() < u64::from(chunk_lines(&self.layout)) {
            return Ok(None);
        }
        let [least, most] = [*wanted.start(), *wanted.end()].map(|lines| self.whole_huge(lines));
        if let Some(new) = most.filter(|&new| new < old) {
            return self.shrink_huge(pool, headers, chunk, old, new);
        }
        for new in [most, least.filter(|_| least != most)].into_iter().flatten() {
            if new <= old || self.grow_huge(pool, &headers, chunk, old, new, &ensure)? {
                return Ok(Some(new.max(old)));
            }
        }
        Ok((*wanted.start() <= u64::from(old)).then_some(old))
    }

    /// How long a block longer than a chunk becomes that is to have so many lines, if it can be one.
    fn whole_huge(&self, lines: u64) -> Option<u32> {
        let in_chunk = u64::from(chunk_lines(&self.layout));
        let wanted = huge_lines(&self.layout, lines);
        // As the whole of its chunks, it must be one free block some day.
        let whole = wanted.saturating_add(1).div_ceil(in_chunk).saturating_mul(in_chunk) - 1;
        let is_possible = lines >= in_chunk && whole <= u64::from(BLOCK_LINES_MAX);
        u32::try_from(wanted).ok().filter(|_| is_possible)
    }

    /// Makes a block longer than a chunk `new` lines long, if all that lies behind it up to there is free.
    fn grow_huge<P: Pmem>(
        &self,
        pool: &mut Pool,
        headers: &Headers<'_, P>,
        chunk: u64,
        old: u32,
        new: u32,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<bool, ResizeError> {
        let offset = self.layout.first_payload(chunk);
        if !ensure(offset + u64::from(old) * LINE_BYTES, u64::from(new - old) * LINE_BYTES)
            || !self.take_behind(pool, headers.pmem, chunk, old, new)?
        {
            return Ok(false);
        }
        let (last, _) = end_of(&self.layout, chunk, old);
        let (new_last, new_line) = end_of(&self.layout, chunk, new);
        let end = chunk_lines(&self.layout);
        if new_line < end {
            headers.store(new_last, new_line, BlockState::Free, end - new_line)?;
        }
        let mut stored = headers.store(chunk, 1, BlockState::Allocated, new);
        // As where such a block is made: these must not be taken for chunks, whatever becomes of the block's own header. What a crash
        // leaves of them is zeroed when the chunks are learned.
        for covered in last + 1..=new_last {
            stored = stored.and_then(|()| headers.store_u64(header_offset(&self.layout, covered, 1), 0));
        }
        pool.huge.insert(chunk, HugeBlock { lines: new, is_live: true, is_lost: false });
        if new_line < end {
            pool.unscanned.insert(new_last, Start::Chain(new_line));
            self.set_home(new_last, Home::Pool);
        }
        Ok(stored.map(|()| true)?)
    }

    /// Takes what lies behind a block of `old` lines up to the end of the chunk where it will end with `new` lines. Whether it is free.
    fn take_behind<P: Pmem>(
        &self,
        pool: &mut Pool,
        pmem: &P,
        chunk: u64,
        old: u32,
        new: u32,
    ) -> Result<bool, FenceError> {
        let (last, line) = end_of(&self.layout, chunk, old);
        let (new_last, _) = end_of(&self.layout, chunk, new);
        let end = chunk_lines(&self.layout);
        if new_last >= self.chunk_count() {
            return Ok(false);
        }
        self.learn_through(pool, pmem, new_last)?;
        let run = last + 1..new_last + 1;
        for behind in run.clone() {
            if pool.unscanned.contains_key(&behind) {
                self.adopt_unscanned(pool, self.own_arena(), pmem, behind)?;
            }
        }
        if self.take_run(pool, run.clone()).is_err() {
            return Ok(false);
        }
        // Where the block ends right at a chunk's end, there is nothing more of that chunk.
        if line == end || self.take_rest(pool, pmem, last, line)? {
            return Ok(true);
        }
        self.give_back(pool, run);
        Ok(false)
    }

    /// Takes a chunk of which a block longer than one has the lines before `line`, if all others are free.
    fn take_rest<P: Pmem>(
        &self,
        pool: &mut Pool,
        pmem: &P,
        chunk: u64,
        line: u32,
    ) -> Result<bool, FenceError> {
        if self.home(chunk) == Home::Pool {
            self.adopt_unscanned(pool, self.own_arena(), pmem, chunk)?;
        }
        let Home::Arena { arena, slot } = self.home(chunk) else { return Ok(false) };
        let end = chunk_lines(&self.layout);
        let mut arena = self.arena(arena as usize);
        let map = arena.map(slot);
        let is_free = map.first == line && map.extent_from(line) == Some(end);
        if !is_free || verify(pmem, &self.layout, map, line..end).is_some() {
            return Ok(false);
        }
        arena.remove(slot);
        self.set_home(chunk, Home::Covered);
        Ok(true)
    }

    /// Gives back the chunks at the end of a block longer than one. What ends in the same chunk as before stays as it is.
    fn shrink_huge<P: Pmem>(
        &self,
        pool: &mut Pool,
        headers: Headers<'_, P>,
        chunk: u64,
        old: u32,
        new: u32,
    ) -> Result<Option<u32>, ResizeError> {
        let (last, line) = end_of(&self.layout, chunk, old);
        let (new_last, new_line) = end_of(&self.layout, chunk, new);
        // What waits before it is used again does so block by block.
        if self.clock.is_used() || new_last == last {
            return Ok(Some(old));
        }
        let end = chunk_lines(&self.layout);
        // The header that ends a chunk is made durable in any heap: neither learning the chunk nor making the heap durable flushes it.
        for freed in (new_last..last).chain((line == end).then_some(last)) {
            let (offset, word) = header_word(&self.layout, freed, end, BlockHeader::new(BlockState::End, 0));
            headers.pmem.store_u64(offset, word);
            headers.pmem.flush(offset, BLOCK_HEADER_BYTES);
        }
        headers.pmem.fence()?;
        if new_line < end {
            headers.store(new_last, new_line, BlockState::Free, end - new_line)?;
        }
        for freed in new_last + 1..last {
            headers.store(freed, 1, BlockState::Free, end - 1)?;
        }
        if line > 1 {
            headers.store(last, 1, BlockState::Free, line - 1)?;
        }
        let stored = headers.store(chunk, 1, BlockState::Allocated, new);
        pool.huge.insert(chunk, HugeBlock { lines: new, is_live: true, is_lost: false });
        if new_line < end {
            pool.unscanned.insert(new_last, Start::Chain(new_line));
            self.set_home(new_last, Home::Pool);
        }
        for free in new_last + 1..last {
            pool.fresh.insert(free);
            self.set_home(free, Home::Pool);
        }
        self.give_front(pool, last, line);
        Ok(stored.map(|()| Some(new))?)
    }
}
