//! The current group of a thread.

/// A group that has not ended, and what its thread knows of its lines.
#[derive(Debug, Default)]
pub(super) struct Current {
    /// Whether it has stored, and asked for a counter.
    pub(super) has_begun: bool,
    /// `None` if no counter was free: then it is stored around the cache.
    pub(super) counter: Option<u16>,
    /// Lines that were stored to since they were flushed.
    pub(super) dirty: Vec<u64>,
    /// Lines that were flushed since the last fence.
    pub(super) flushed: Vec<u64>,
    /// Whether something was stored around the cache since the last fence.
    pub(super) needs_fence: bool,
}

impl Current {
    /// The number of lines that may not be durable.
    pub(super) const fn len(&self) -> usize {
        self.dirty.len() + self.flushed.len()
    }

    /// Notes that a line was flushed.
    pub(super) fn flush(&mut self, line: u64) {
        if let Some(at) = self.dirty.iter().rposition(|dirty| *dirty == line) {
            self.dirty.swap_remove(at);
            self.flushed.push(line);
        }
    }

    /// Ends the group: takes its counter and its lines.
    pub(super) fn end(&mut self) -> (Option<u16>, Vec<u64>) {
        self.has_begun = false;
        let mut lines = core::mem::take(&mut self.dirty);
        lines.append(&mut self.flushed);
        (self.counter.take(), lines)
    }
}
