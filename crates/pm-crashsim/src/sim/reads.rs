//! The lines that a run read, of those that matter.

use crate::line::{LineList, LineSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The list of the lines read has capacity for so many from its first line on, so it seldom grows.
const EXPECTED_LINES: usize = 56;

/// The lines of its first image that an exploration depends on: those that any of its runs read or stored to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    lines: LineList,
    /// Whether a run read the whole image.
    is_all: bool,
}

/// Shared by several regions that note their accesses.
pub(crate) type SharedTouched = Arc<Mutex<Touched>>;

/// The watched lines that were read, in the order of their first reads.
#[derive(Default)]
pub(crate) struct Reads {
    watched: Arc<LineSet>,
    seen: LineList,
    /// The line noted last, which is often the next one, too.
    last: Option<u64>,
    /// Notes every line, watched or not.
    touched: Option<SharedTouched>,
}

impl Reads {
    /// Watches these lines from now on.
    pub(crate) fn watch(&mut self, lines: &Arc<LineSet>) {
        self.watched = Arc::clone(lines);
        self.last = None;
    }

    /// Also notes there every line that is read or stored to from now on.
    pub(crate) fn report_to(&mut self, touched: &SharedTouched) {
        self.touched = Some(Arc::clone(touched));
        self.last = None;
    }

    pub(crate) fn note(&mut self, line: u64) {
        if self.last == Some(line) {
            return;
        }
        self.last = Some(line);
        self.note_stored(line);
        if self.watched.contains(&line) {
            if self.seen.is_empty() {
                self.seen.reserve(self.watched.len().min(EXPECTED_LINES));
            }
            self.seen.insert(line);
        }
    }

    /// Notes a store.
    pub(crate) fn note_stored(&self, line: u64) {
        if let Some(touched) = &self.touched {
            lock(touched).lines.insert(line);
        }
    }

    /// Notes the dependencies of an exploration that started from the same image.
    pub(crate) fn note_touched(&mut self, touched: &Touched) {
        touched.lines.iter().for_each(|&line| self.note(line));
        if touched.is_all {
            self.note_all();
        }
    }

    /// Notes a read of everything.
    pub(crate) fn note_all(&mut self) {
        if let Some(touched) = &self.touched {
            lock(touched).is_all = true;
        }
        if self.seen.len() < self.watched.len() {
            let mut all: Vec<u64> = self.watched.iter().copied().collect();
            all.sort_unstable();
            all.into_iter().for_each(|line| self.note(line));
        }
    }

    /// The reads so far, taken out.
    pub(crate) fn take(&mut self) -> LineList {
        core::mem::take(&mut self.seen)
    }
}

/// The accesses so far. A panic of a run under test leaves them consistent.
pub(crate) fn lock(touched: &SharedTouched) -> MutexGuard<'_, Touched> {
    touched.lock().unwrap_or_else(PoisonError::into_inner)
}
