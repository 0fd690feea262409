//! Mapped files: a range of a file whose pages stay where they are.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES};
use crate::node::contents::{ByteRange, short};
use crate::ops::{allocate, write};
use crate::session::open::OpenInode;
use core::fmt;
use core::ops::Range;
use pm_core::{Pmem, Region};

/// A range of a file in memory: loads and stores without a call of the file system.
///
/// As long as there is a map of a file, its pages stay where they are. What is punched or cut off is zeroed or kept, and freed later, at last with
/// the file; writes are in place, even in strict files. Threads may share it. A load of bytes that another thread stores may find a part of them.
pub struct Map<P: Pmem = Region> {
    file: OpenInode<P>,
    /// The range of the file.
    range: Range<u64>,
    /// The length of a piece: that of a huge page if there are only huge ones, else of a page.
    piece_bytes: u64,
    /// The offsets in the pool of the pieces that the range is in.
    pieces: Vec<u64>,
}

#[expect(clippy::cast_possible_truncation, reason = "512")]
const HUGE_PIECE: usize = HUGE_PAGE_PAGES as usize;

impl<P: Pmem> fmt::Debug for Map<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("file", &self.file).field("range", &self.range).finish_non_exhaustive()
    }
}

impl<P: Pmem> Drop for Map<P> {
    fn drop(&mut self) {
        self.file.state().write().maps -= 1;
    }
}

impl<P: Pmem> Map<P> {
    /// See [`Handle::map`](crate::Handle::map).
    pub(crate) fn new(file: &OpenInode<P>, range: ByteRange) -> Result<Self, FsError> {
        let ByteRange { offset, len_bytes } = range;
        let range = offset..offset.checked_add(len_bytes).ok_or(FsError::Invalid)?;
        let mut inner = file.state().write();
        let pages = allocate::present_pages(file.shared(), file.state(), &inner, &range)?;
        inner.maps += 1;
        drop(inner);
        let is_huge = (range.start / PAGE_BYTES).is_multiple_of(HUGE_PAGE_PAGES)
            && pages.chunks(HUGE_PIECE).all(|pages| {
                let is_aligned = pages[0].is_multiple_of(HUGE_PAGE_BYTES);
                is_aligned && pages.windows(2).all(|pages| pages[1] == pages[0] + PAGE_BYTES)
            });
        let (piece_bytes, pieces) = match is_huge {
            true => (HUGE_PAGE_BYTES, pages.into_iter().step_by(HUGE_PIECE).collect()),
            false => (PAGE_BYTES, pages),
        };
        Ok(Self { file: file.clone(), range, piece_bytes, pieces })
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Loads bytes from an offset in the map.
    ///
    /// # Errors
    /// When they are not in the map.
    pub fn load(&self, at: u64, out: &mut [u8]) -> Result<(), FsError> {
        let mut rest = out;
        self.each_piece(at, rest.len() as u64, |offset, len| {
            let (piece, after) = core::mem::take(&mut rest).split_at_mut(len);
            self.file.shared().volume.pmem().load(offset, piece);
            rest = after;
        })
    }

    /// Stores bytes at an offset in the map.
    ///
    /// # Errors
    /// When they are not in the map.
    ///
    /// # Durability
    /// Durable after [`persist`](Self::persist); a crash before that leaves each aligned 8-byte word old or new.
    pub fn store(&self, at: u64, bytes: &[u8]) -> Result<(), FsError> {
        let mut rest = bytes;
        self.each_piece(at, bytes.len() as u64, |offset, len| {
            let (piece, after) = rest.split_at(len);
            self.file.shared().volume.pmem().store(offset, piece);
            rest = after;
        })
    }

    /// Makes a range of the map durable, and notes the time of the change: msync(2).
    ///
    /// # Errors
    /// When the range is not in the map, or a fence fails.
    ///
    /// # Durability
    /// What was stored before this call is durable when it returns, with the fence of [`View::store_u64_pair`](pm_alloc::View::store_u64_pair). One
    /// fence.
    pub fn persist(&self, range: Range<u64>) -> Result<(), FsError> {
        let len = range.end.checked_sub(range.start).ok_or(FsError::Invalid)?;
        let shared = self.file.shared();
        self.each_piece(range.start, len, |offset, len| shared.volume.pmem().flush(offset, len as u64))?;
        write::note_change(shared, self.file.state())
    }

    /// Calls `each` with the offsets in the pool and the lengths of the parts of a range, which are in one piece each.
    fn each_piece(&self, at: u64, len: u64, mut each: impl FnMut(u64, usize)) -> Result<(), FsError> {
        let end = at.checked_add(len).filter(|end| *end <= self.len_bytes()).ok_or(FsError::Invalid)?;
        let first = self.range.start / self.piece_bytes;
        let (mut at, end) = (self.range.start + at, self.range.start + end);
        while at < end {
            let stop = ((at / self.piece_bytes + 1) * self.piece_bytes).min(end);
            let piece = self.pieces[short(at / self.piece_bytes - first)];
            each(piece + at % self.piece_bytes, short(stop - at));
            at = stop;
        }
        Ok(())
    }
}
