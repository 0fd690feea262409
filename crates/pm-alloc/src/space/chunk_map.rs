//! The map of one chunk in DRAM.
//!
//! Lines are counted from the chunk's start. A block starts at the line of its payload. Line 0 contains only the first header. The end of the chunk
//! counts as a block start.
//!
//! Invariants:
//! - If a line is in use and the next line is free, a block of the chain starts at the free line. So a free extent consists of whole free blocks.
//! - Lines that are reserved or quarantined are in use.

use super::bitmap::Bitmap;
use super::error::{Corruption, FreeError};
use super::headers::{block_end, chunk_lines, header_offset, line_offset, read};
use super::scanner::{Scanner, Start, Step};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState};
use crate::layout::Layout;
use crate::sync;
use core::ops::{Range, RangeInclusive};
use pm_core::Pmem;

#[derive(Debug)]
pub(super) struct ChunkMap {
    pub(super) chunk: u64,
    pub(super) lines: u32,
    /// The first line of the chain: line 1, or the line after the end of a huge block.
    pub(super) first: u32,
    /// Lines in use. All other lines are free.
    pub(super) used: Bitmap,
    /// Lines where one of these starts: a block of the chain, the unreachable extent, or an allocated block inside the unreachable extent.
    pub(super) starts: Bitmap,
    /// Lines where an allocated block starts that is not being freed.
    pub(super) live: Bitmap,
    pub(super) free_lines: u32,
    /// The first unreachable line: the chain is broken there. `lines` if the chain is intact; 0 if the whole chunk is unreachable. Unreachable lines
    /// stay in use, and only the headers of allocated blocks are used there.
    pub(super) unreachable_from: u32,
    /// Extents whose headers are corrupted, or that a repair has marked lost.
    pub(super) lost: Vec<Range<u32>>,
}

/// A free block whose header is corrupted.
pub(super) struct CorruptedFree {
    pub(super) lines: Range<u32>,
    pub(super) found: u64,
}

impl ChunkMap {
    /// The map of a chunk before its chain is scanned. All lines count as in use.
    fn unknown(chunk: u64, lines: u32, first: u32) -> Self {
        let mut used = Bitmap::new(lines);
        used.set_range(0..lines);
        let (starts, live, lost) = (Bitmap::new(lines), Bitmap::new(lines), Vec::new());
        Self { chunk, lines, first, used, starts, live, free_lines: 0, unreachable_from: lines, lost }
    }

    /// The map of a chunk that is one free block.
    pub(super) fn free(chunk: u64, lines: u32) -> Self {
        let mut map = Self::unknown(chunk, lines, 1);
        map.starts.set(1);
        map.used.clear_range(1..lines);
        map.free_lines = lines - 1;
        map
    }

    /// Builds the map from the headers of a chunk. Also returns the corrupted headers.
    pub(super) fn scan<P: Pmem>(
        scanner: Scanner<'_, P>,
        chunk: u64,
        start: Start,
    ) -> (Self, Vec<Corruption>) {
        let first = if let Start::Chain(first) = start { first } else { 1 };
        let mut map = Self::unknown(chunk, chunk_lines(scanner.layout), first);
        let mut corruptions = Vec::new();
        for step in scanner.walk(chunk, start) {
            match step {
                Step::Intact(state, lines) => {
                    map.starts.set(lines.start);
                    match state {
                        BlockState::Allocated => map.live.set(lines.start),
                        BlockState::Free => drop(map.release(lines)),
                        BlockState::Lost => map.lost.push(lines),
                        BlockState::End | BlockState::Unreachable => {}
                    }
                }
                Step::Unreachable(corruption, lines) => {
                    map.starts.set(lines.start);
                    // If the whole chunk is unreachable, its first header is not used either.
                    map.unreachable_from = if start == Start::Unreachable { 0 } else { lines.start };
                    corruptions.extend(corruption);
                }
                Step::Resynchronized(lines) => {
                    map.starts.set(lines.start);
                    map.live.set(lines.start);
                }
                Step::End(corruption) => corruptions.push(corruption),
            }
        }
        (map, corruptions)
    }

    /// Flushes all headers of the chain, including those that other threads have stored. The caller's next fence makes them durable.
    pub(super) fn flush_headers<P: Pmem>(&self, pmem: &P, layout: &Layout) {
        sync::order_observed_stores_before_flushes();
        let flush = |line| pmem.flush(header_offset(layout, self.chunk, line), BLOCK_HEADER_BYTES);
        let mut line = self.starts.next_set(0);
        while line < self.lines {
            flush(line);
            line = self.next_start(line);
        }
        flush(self.lines);
    }

    /// The first free block on these lines whose header is corrupted. Called before the lines become a part of another block.
    #[inline]
    pub(super) fn find_corrupted<P: Pmem>(
        &self,
        pmem: &P,
        layout: &Layout,
        lines: Range<u32>,
    ) -> Option<CorruptedFree> {
        let mut line = lines.start;
        while line < lines.end {
            let next = self.next_start(line);
            let (found, header) = read(pmem, layout, self.chunk, line);
            if header != Some(BlockHeader::new(BlockState::Free, next - line)) {
                return Some(CorruptedFree { lines: line..next, found });
            }
            line = next;
        }
        None
    }

    /// The length of the allocated block that starts at `line` in the unreachable extent. Only the block's own header shows this length: the next
    /// block start may be a former header inside the block. With `to_free`, the block no longer counts as allocated.
    #[cold]
    pub(super) fn find_unreachable<P: Pmem>(
        &mut self,
        pmem: &P,
        layout: &Layout,
        line: u32,
        to_free: bool,
    ) -> Result<u32, FreeError> {
        let offset = line_offset(layout, self.chunk, line);
        let header_offset = header_offset(layout, self.chunk, self.unreachable_from.max(1));
        let corrupted = FreeError::Corrupted { offset, header_offset };
        let Some(header) = read(pmem, layout, self.chunk, line).1.filter(|_| self.starts.get(line)) else {
            return Err(corrupted);
        };
        match block_end(header, line, self.lines) {
            Some(next) if header.state == BlockState::Allocated && self.live.get(line) => {
                if to_free {
                    self.live.clear(line);
                }
                Ok(next - line)
            }
            Some(_) if matches!(header.state, BlockState::Free | BlockState::Allocated) => {
                Err(FreeError::AlreadyFree { offset })
            }
            _ => Err(corrupted),
        }
    }

    /// Whether no line is in use.
    pub(super) fn is_free(&self) -> bool {
        self.free_lines == self.lines - 1
    }

    /// The first block start after `line`, which may be the chunk's end.
    #[inline]
    pub(super) fn next_start(&self, line: u32) -> u32 {
        self.starts.next_set(line + 1)
    }

    /// The end of the free extent that starts at `line`. `None` if no free extent starts there.
    #[inline]
    pub(super) fn extent_end(&self, line: u32) -> Option<u32> {
        let starts = line > 0 && line < self.lines && !self.used.get(line) && self.used.get(line - 1);
        starts.then(|| self.used.next_set(line))
    }

    /// The free extents.
    pub(super) fn free_extents(&self) -> impl Iterator<Item = Range<u32>> {
        let mut from = 1;
        core::iter::from_fn(move || {
            let start = self.used.next_clear(from);
            from = self.used.next_set(start);
            (start < self.lines).then_some(start..from)
        })
    }

    /// Finds the shortest run of free blocks that has `wanted` lines in total and starts in the 64 lines from `from` on. Returns its first line and
    /// its number of lines. A run that ends at the chunk's end is not found.
    #[inline]
    pub(super) fn find_run(&self, from: u32, wanted: RangeInclusive<u32>) -> Option<(u32, u32)> {
        let free = self.starts.window(from) & !self.used.window(from);
        if free == 0 {
            return None;
        }
        for lines in wanted {
            let mut starts = free & self.starts.window(from.saturating_add(lines));
            while starts != 0 {
                let line = from + starts.trailing_zeros();
                if self.used.next_set(line) >= line + lines {
                    return Some((line, lines));
                }
                starts &= starts - 1;
            }
        }
        None
    }

    /// The first line at or after `line` that a copy of the chunk contains: the start of an allocated block, a line of a lost block, or a line of the
    /// unreachable extent. If there is none, the chunk's end.
    pub(super) fn next_copied(&self, line: u32) -> u32 {
        let lost = self.lost.iter().filter(|lost| lost.end > line).map(|lost| lost.start.max(line));
        let first = lost.chain([self.live.next_set(line), self.unreachable_from.max(line)]).min();
        first.unwrap_or(self.lines).min(self.lines)
    }

    /// The free extent around this free line.
    #[inline]
    pub(super) fn extent_around(&self, line: u32) -> Range<u32> {
        // Line 0 is always in use.
        self.used.last_set(line).unwrap_or(0) + 1..self.used.next_set(line)
    }

    /// The first free extent at or after `line`. If `line` is inside a free extent, the result starts at `line`.
    pub(super) fn next_extent(&self, line: u32) -> Option<Range<u32>> {
        let from = self.used.next_clear(line);
        (from < self.lines).then(|| from..self.used.next_set(from))
    }

    /// Marks free lines as in use.
    #[inline]
    pub(super) fn hold(&mut self, lines: Range<u32>) {
        self.free_lines -= lines.end - lines.start;
        self.used.set_range(lines);
    }

    /// Makes lines free, and returns the free extent around them. Unreachable and lost lines stay in use.
    #[inline]
    pub(super) fn release(&mut self, lines: Range<u32>) -> Option<Range<u32>> {
        if lines.start >= self.unreachable_from || lines.is_empty() || self.lost_at(lines.start).is_some() {
            return None;
        }
        self.free_lines += lines.end - lines.start;
        self.used.clear_range(lines.clone());
        Some(self.extent_around(lines.start))
    }

    /// The start of the lost extent that contains `line`.
    #[inline]
    pub(super) fn lost_at(&self, line: u32) -> Option<u32> {
        self.lost.iter().find(|lost| lost.contains(&line)).map(|lost| lost.start)
    }
}
