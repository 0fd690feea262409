//! The current group of a thread.

use super::groups::Groups;
use core::cell::RefCell;
use std::sync::{Arc, Weak};

/// A group that has not ended, and what its thread knows of its lines. It never changes threads: a fence covers the flushes of its own thread only.
#[derive(Debug)]
pub(super) struct Current {
    groups: Weak<Groups>,
    /// Whether it has stored, and asked for a counter.
    pub(super) has_begun: bool,
    /// `None` if no counter was free: then its lines are written back at once.
    pub(super) counter: Option<u16>,
    /// Lines that were stored to since they were flushed.
    pub(super) dirty: Vec<u64>,
    /// Lines that were flushed since the last fence.
    pub(super) flushed: Vec<u64>,
    /// Whether something was stored around the cache since the last fence.
    pub(super) needs_fence: bool,
}

thread_local! {
    /// The current groups of this thread, by the identity of their counters.
    static CURRENTS: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
}

impl Current {
    /// Calls `with` with the current group of this thread.
    ///
    /// When the thread ends, and the destructor of another thread-local value makes this call after the groups are gone, there is a group for this call alone: it
    /// has no counter, and when the call has returned, what it has stored is durable.
    pub(super) fn with<R>(groups: &Arc<Groups>, with: impl FnOnce(&mut Self) -> R) -> R {
        let mut with = Some(with);
        let called = CURRENTS.try_with(|currents| {
            let currents = &mut *currents.borrow_mut();
            let is_own = |current: &Self| core::ptr::eq(current.groups.as_ptr(), Arc::as_ptr(groups));
            let at = currents.iter().position(is_own).unwrap_or_else(|| {
                // Of counters that are dropped. Their addresses may come again, but not before these are dropped too.
                currents.retain(|current| current.groups.strong_count() > 0);
                currents.push(Self::new(groups));
                currents.len() - 1
            });
            with.take().map(|with| with(&mut currents[at]))
        });
        match (called, with) {
            (Ok(Some(result)), _) => result,
            (_, Some(with)) => {
                let mut own = Self::new(groups);
                own.has_begun = true;
                with(&mut own)
            }
            (_, None) => unreachable!("it was called, and has returned"),
        }
    }

    fn new(groups: &Arc<Groups>) -> Self {
        Self {
            groups: Arc::downgrade(groups),
            has_begun: false,
            counter: None,
            dirty: Vec::new(),
            flushed: Vec::new(),
            needs_fence: false,
        }
    }

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

impl Drop for Current {
    /// The thread ends, and its group with it, as if it had ended the group: no handle refers to the group, but its lines are tagged, its counter is in use, and
    /// later groups may count on it.
    ///
    /// # Durability
    /// One fence, if the group has stores that no counter makes durable.
    fn drop(&mut self) {
        let Some(groups) = self.groups.upgrade() else { return };
        if self.needs_fence {
            // No other thread's fence covers these stores.
            groups.fence_for_thread();
        }
        let (counter, lines) = self.end();
        if counter.is_some() || !lines.is_empty() {
            groups.end(counter, lines);
        }
    }
}
