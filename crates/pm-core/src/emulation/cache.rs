//! A CPU cache in the model: which lines cost nothing.

use crate::line::{LINE, lines_spanned};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The lines that a CPU cache of some size would hold: direct-mapped, shared by all threads. A thread that races with another may find a line missing
/// that is there.
#[derive(Debug)]
pub(super) struct Cache {
    /// For each place the number of the line that is there, plus 1; 0 if none is.
    lines: Box<[AtomicU64]>,
}

impl Cache {
    /// An empty cache of `len_bytes` bytes, at least one line.
    pub(super) fn new(len_bytes: usize) -> Self {
        Self { lines: (0..(len_bytes / LINE).max(1)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Adds the lines that hold a byte of the range. Returns the number of those that were missing.
    #[inline]
    pub(super) fn add(&self, offset: u64, len_bytes: u64) -> u64 {
        let first = offset / LINE as u64;
        (first..first + lines_spanned(offset, len_bytes)).filter(|line| self.add_line(*line)).count() as u64
    }

    fn add_line(&self, line: u64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of places")]
        let place = &self.lines[(line % self.lines.len() as u64) as usize];
        let is_missing = place.load(Relaxed) != line + 1;
        if is_missing {
            place.store(line + 1, Relaxed);
        }
        is_missing
    }
}
