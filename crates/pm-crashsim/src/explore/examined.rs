//! Lines that were looked at, each once, in order.

use crate::line::LineSet;

#[derive(Default)]
pub(super) struct Examined {
    in_order: Vec<u64>,
    seen: LineSet,
}

impl Examined {
    pub(super) fn add(&mut self, line: u64) {
        if self.seen.insert(line) {
            self.in_order.push(line);
        }
    }

    pub(super) fn extend(&mut self, lines: impl IntoIterator<Item = u64>) {
        lines.into_iter().for_each(|line| self.add(line));
    }

    pub(super) fn lines(&self) -> &[u64] {
        &self.in_order
    }

    pub(super) fn into_lines(self) -> Vec<u64> {
        self.in_order
    }
}

impl From<Vec<u64>> for Examined {
    /// The lines, each of which is there once.
    fn from(in_order: Vec<u64>) -> Self {
        let seen = in_order.iter().copied().collect();
        Self { in_order, seen }
    }
}
