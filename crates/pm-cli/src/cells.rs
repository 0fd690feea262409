//! A range of a heap, cut into equal cells: the use of each, and how often its lines were written.

use core::ops::Range;
use miette::{Context as _, IntoDiagnostic as _, bail};
use serde::Deserialize;
use std::path::Path;

/// The most cells of a picture.
const CELLS_MAX: u64 = 2048;

/// The use of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Allocated,
    Free,
    Lost,
}

/// The bytes of a cell by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) allocated: u64,
    pub(crate) free: u64,
    pub(crate) lost: u64,
}

/// The cells, from the first byte of the range on.
#[derive(Debug)]
pub(crate) struct Cells {
    range: Range<u64>,
    cell_bytes: u64,
    pub(crate) shares: Vec<Shares>,
}

impl Cells {
    /// Cells over a range: as small as [`CELLS_MAX`] allows, a power of two of bytes, at least a line.
    pub(crate) fn new(range: Range<u64>) -> Self {
        let len = range.end - range.start;
        let cell_bytes = len.div_ceil(CELLS_MAX).next_power_of_two().max(64);
        let count = usize::try_from(len.div_ceil(cell_bytes)).expect("at most 2,048");
        Self { range, cell_bytes, shares: vec![Shares::default(); count] }
    }

    pub(crate) const fn range(&self) -> &Range<u64> {
        &self.range
    }

    pub(crate) const fn cell_bytes(&self) -> u64 {
        self.cell_bytes
    }

    /// The start of a cell.
    pub(crate) const fn offset(&self, cell: usize) -> u64 {
        self.range.start + cell as u64 * self.cell_bytes
    }

    /// The cell that contains an offset, if any.
    pub(crate) fn cell_of(&self, offset: u64) -> Option<usize> {
        let inside = self.range.contains(&offset).then(|| (offset - self.range.start) / self.cell_bytes)?;
        usize::try_from(inside).ok()
    }

    /// Adds a range of bytes to the cells that it overlaps. Bytes outside of the cells are ignored.
    pub(crate) fn add(&mut self, bytes: Range<u64>, what: Use) {
        let (mut at, end) = (bytes.start.max(self.range.start), bytes.end.min(self.range.end));
        while at < end {
            let Some(cell) = self.cell_of(at) else { return };
            let next = end.min(self.offset(cell) + self.cell_bytes);
            let shares = &mut self.shares[cell];
            *match what {
                Use::Allocated => &mut shares.allocated,
                Use::Free => &mut shares.free,
                Use::Lost => &mut shares.lost,
            } += next - at;
            at = next;
        }
    }
}

/// The file: the result of `pm_core::LineWrites::by_line`, with the length of a line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    line_bytes: u64,
    writes: Vec<(u64, u64)>,
}

/// The writes to the blocks of a heap, by cell.
#[derive(Debug, Default)]
pub(crate) struct Wear {
    /// For each cell, the writes to its most-written line.
    pub(crate) most: Vec<u64>,
    /// The most-written line, and its writes.
    pub(crate) hottest: Option<(u64, u64)>,
    /// All writes to lines in the cells.
    pub(crate) total: u64,
    /// Writes to other lines: headers, logs, other heaps.
    pub(crate) elsewhere: u64,
}

impl Wear {
    /// Reads the writes to the lines that lie in these cells.
    pub(crate) fn read(path: &Path, cells: &Cells) -> miette::Result<Self> {
        let path_shown = path.display();
        let text =
            std::fs::read_to_string(path).into_diagnostic().wrap_err_with(|| path_shown.to_string())?;
        let file: File = serde_json::from_str(&text).into_diagnostic().wrap_err_with(|| {
            format!("{path_shown}: is not {{\"line_bytes\":64,\"writes\":[[offset,count],...]}}")
        })?;
        if file.line_bytes != pm_core::line::LINE_BYTES {
            bail!("{path_shown}: has lines of {} bytes, and a heap has lines of 64", file.line_bytes);
        }
        let mut wear = Self { most: vec![0; cells.shares.len()], ..Self::default() };
        for (offset, count) in file.writes {
            let Some(cell) = cells.cell_of(offset) else {
                wear.elsewhere = wear.elsewhere.saturating_add(count);
                continue;
            };
            wear.total = wear.total.saturating_add(count);
            wear.most[cell] = wear.most[cell].max(count);
            if wear.hottest.is_none_or(|(_, most)| count > most) {
                wear.hottest = Some((offset, count));
            }
        }
        Ok(wear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cover_range_within_limit() {
        for len in [64, 4096, 64 << 20, (4 << 30) + 4096] {
            let cells = Cells::new(8192..8192 + len);
            assert!((1..=2048).contains(&cells.shares.len()), "{len}");
            assert!(
                cells.offset(cells.shares.len()) >= 8192 + len
                    && cells.offset(cells.shares.len() - 1) < 8192 + len
            );
            assert_eq!(cells.cell_of(8192 + len - 1), Some(cells.shares.len() - 1));
            assert_eq!((cells.cell_of(8191), cells.cell_of(8192 + len)), (None, None));
        }
    }

    #[test]
    fn bytes_are_counted_in_their_cells() {
        let mut cells = Cells::new(0..1 << 20);
        assert_eq!(cells.cell_bytes(), 512);
        cells.add(500..1100, Use::Allocated);
        cells.add(1100..1200, Use::Lost);
        cells.add((1 << 20) - 10..u64::MAX, Use::Free);
        let allocated: Vec<u64> = cells.shares[..4].iter().map(|shares| shares.allocated).collect();
        assert_eq!(allocated, [12, 512, 76, 0]);
        assert_eq!(cells.shares[2].lost, 100);
        assert_eq!(cells.shares.last().map(|last| last.free), Some(10));
        assert_eq!(cells.shares.iter().map(|shares| shares.free).sum::<u64>(), 10);
    }
}
