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
        self.len.store(waiting.len(), Ordering::Release);
    }

    /// Calls the actions of groups that are durable, one after the other, without a lock. Returns their number. If one panics, the others go on waiting.
    pub(super) fn run(&self, is_durable: impl Fn(Group) -> bool) -> usize {
        let mut count = 0;
        // An action that another thread adds now is found by that thread.
        while self.len.load(Ordering::Acquire) != 0 {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let due = waiting.iter().position(|(group, _)| is_durable(*group));
            let Some((_, action)) = due.and_then(|due| waiting.remove(due)) else { break };
            self.len.store(waiting.len(), Ordering::Release);
            drop(waiting);
            action();
            count += 1;
        }
        count
    }
}
