//! How often each line was written, from a file.

use crate::cells::Cells;
use miette::{Context as _, IntoDiagnostic as _, bail};
use serde::Deserialize;
use std::path::Path;

/// The file: what `pm_core::LineWrites::by_line` gives, with the length of a line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    line_bytes: u64,
    writes: Vec<(u64, u64)>,
}

/// The writes to the blocks of a heap, by cell.
#[derive(Debug, Default)]
pub(crate) struct Wear {
    /// For each cell the writes to its most-written line.
    pub(crate) most: Vec<u64>,
    /// The line that has most, and how many.
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
