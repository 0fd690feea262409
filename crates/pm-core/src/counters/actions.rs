//! Actions that wait until their groups are durable.

use super::groups::Group;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

type Action = Box<dyn FnOnce() + Send>;

/// The actions, in the order in which they were added.
#[derive(Default)]
pub(super) struct Actions {
    waiting: Mutex<VecDeque<(Group, Action)>>,
    len: AtomicUsize,
}

impl fmt::Debug for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Actions").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Actions {
    pub(super) fn push(&self, group: Group, action: Action) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((group, action));
        self.len.store(waiting.len(), Ordering::Relaxed);
    }

    /// Calls the actions of groups that are durable, without a lock. Returns their number.
    pub(super) fn run(&self, is_durable: impl Fn(Group) -> bool) -> usize {
        // An action that another thread adds now is found by its next call.
        if self.len.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (due, rest) =
            core::mem::take(&mut *waiting).into_iter().partition(|(group, _)| is_durable(*group));
        *waiting = rest;
        self.len.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        let due: VecDeque<(Group, Action)> = due;
        let count = due.len();
        due.into_iter().for_each(|(_, action)| action());
        count
    }
}
