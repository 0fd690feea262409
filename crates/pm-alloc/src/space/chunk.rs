//! What DRAM knows about the lines of one chunk.
//!
//! Lines are counted from the chunk's start. A block starts at the line of its payload, so its header is the last word
//! of the line before; line 0 holds nothing but the first header, and the end of the chunk counts as the start of a
//! block.
//!
//! Invariants:
//! - Where a line in use is followed by one that is not, a block of the chain starts. So every extent of free lines is
//!   a whole number of free blocks.
//! - What is held by a reservation or waits after its freeing is in use.

use super::bitmap::Bitmap;
use core::ops::{Range, RangeInclusive};

/// The map of one chunk.
#[derive(Debug)]
pub(super) struct ChunkMap {
    /// Which chunk.
    pub(super) chunk: u64,
    /// Lines in the chunk.
    pub(super) lines: u32,
    /// Where the chain starts: at line 1, or behind the end of a block that is longer than a chunk.
    pub(super) first: u32,
    /// Lines that are not to be handed out.
    pub(super) used: Bitmap,
    /// Lines where a block of the chain starts.
    pub(super) starts: Bitmap,
    /// Of those, where it is allocated, and nobody is freeing it.
    pub(super) live: Bitmap,
    /// Lines not in use.
    pub(super) free_lines: u32,
    /// From here on the chain is cut. These lines stay in use, and a header counts only if it says that its block is allocated.
    pub(super) severed_from: u32,
    /// Blocks, or what may have been several, whose headers are corrupted, or that a repair gave up.
    pub(super) lost: Vec<Range<u32>>,
}

impl ChunkMap {
    /// Of a chunk whose chain is not known yet: all in use.
    pub(super) fn unknown(chunk: u64, lines: u32, first: u32) -> Self {
        let mut used = Bitmap::new(lines);
        used.set_range(0..lines);
        let (starts, live) = (Bitmap::new(lines), Bitmap::new(lines));
        Self { chunk, lines, first, used, starts, live, free_lines: 0, severed_from: lines, lost: Vec::new() }
    }

    /// Of a chunk that is one free block.
    pub(super) fn whole(chunk: u64, lines: u32) -> Self {
        let mut map = Self::unknown(chunk, lines, 1);
        map.starts.set(1);
        map.used.clear_range(1..lines);
        map.free_lines = lines - 1;
        map
    }

    /// Whether nothing in it is in use.
    pub(super) fn is_whole(&self) -> bool {
        self.free_lines == self.lines - 1
    }

    /// The first start behind a line, which may be the chunk's end.
    #[inline]
    pub(super) fn next_start(&self, line: u32) -> u32 {
        self.starts.next_set(line + 1)
    }

    /// Where the free extent ends that starts at this line, if there is one.
    #[inline]
    pub(super) fn extent_from(&self, line: u32) -> Option<u32> {
        let starts = line > 0 && line < self.lines && !self.used.get(line) && self.used.get(line - 1);
        starts.then(|| self.used.next_set(line))
    }

    /// Where one of the 64 lines from `from` on begins free blocks that have so many lines together, the fewest of `wanted`
    /// that there are, and how many. Those at the end of the chunk are not seen.
    #[inline]
    pub(super) fn find_run(&self, from: u32, wanted: RangeInclusive<u32>) -> Option<(u32, u32)> {
        let free = self.starts.window(from) & !self.used.window(from);
        if free == 0 {
            return None;
        }
        for lines in wanted {
            let mut begins = free & self.starts.window(from.saturating_add(lines));
            while begins != 0 {
                let line = from + begins.trailing_zeros();
                if self.used.next_set(line) >= line + lines {
                    return Some((line, lines));
                }
                begins &= begins - 1;
            }
        }
        None
    }

    /// The first line from this one on that a copy of the chunk must keep: of an allocated block, of one whose header is corrupted, or of
    /// what is cut off. The chunk's end, if there is none.
    pub(super) fn next_kept(&self, line: u32) -> u32 {
        let lost = self.lost.iter().filter(|lost| lost.end > line).map(|lost| lost.start.max(line));
        let first = lost.chain([self.live.next_set(line), self.severed_from.max(line)]).min();
        first.unwrap_or(self.lines).min(self.lines)
    }

    /// The free extent that this free line is in.
    #[inline]
    pub(super) fn extent_around(&self, line: u32) -> Range<u32> {
        // Line 0 is always in use.
        self.used.last_set(line).unwrap_or(0) + 1..self.used.next_set(line)
    }

    /// The first free extent from a line on.
    pub(super) fn extent_behind(&self, line: u32) -> Option<Range<u32>> {
        let from = self.used.next_clear(line);
        (from < self.lines).then(|| from..self.used.next_set(from))
    }

    /// Takes free lines out of use.
    #[inline]
    pub(super) fn hold(&mut self, lines: Range<u32>) {
        self.free_lines -= lines.end - lines.start;
        self.used.set_range(lines);
    }

    /// Makes lines free, and says which extent they are in now. Where the chain is cut they stay in use.
    #[inline]
    pub(super) fn release(&mut self, lines: Range<u32>) -> Option<Range<u32>> {
        if lines.start >= self.severed_from || lines.is_empty() || self.lost_at(lines.start).is_some() {
            return None;
        }
        self.free_lines += lines.end - lines.start;
        self.used.clear_range(lines.clone());
        Some(self.extent_around(lines.start))
    }

    /// Where the corrupted extent begins in which a line lies.
    #[inline]
    pub(super) fn lost_at(&self, line: u32) -> Option<u32> {
        self.lost.iter().find(|lost| lost.contains(&line)).map(|lost| lost.start)
    }
}
