//! Which lines a run read, of those that matter.

use crate::lines::LineSet;
use std::sync::Arc;

/// The watched lines that were read, in the order of their first reads.
#[derive(Default)]
pub(crate) struct Reads {
    watched: Arc<LineSet>,
    seen: LineSet,
    in_order: Vec<u64>,
    /// The line noted last, which is often the next one, too.
    last: Option<u64>,
}

impl Reads {
    /// From now on these lines matter.
    pub(crate) fn watch(&mut self, lines: &Arc<LineSet>) {
        self.watched = Arc::clone(lines);
        self.last = None;
    }

    pub(crate) fn note(&mut self, line: u64) {
        if self.last == Some(line) {
            return;
        }
        self.last = Some(line);
        if self.watched.contains(&line) && self.seen.insert(line) {
            self.in_order.push(line);
        }
    }

    /// Notes that everything was read.
    pub(crate) fn note_all(&mut self) {
        if self.seen.len() < self.watched.len() {
            let mut all: Vec<u64> = self.watched.iter().copied().collect();
            all.sort_unstable();
            all.into_iter().for_each(|line| self.note(line));
        }
    }

    /// What was read so far, taken out.
    pub(crate) fn take(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.in_order)
    }
}
