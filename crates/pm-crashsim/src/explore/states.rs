//! The states that recoveries found, so that what is the same need not be looked at again.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// States by their hashes, each with the number of the history that it was found after, and how many more crashes were
/// tried inside of the run that looked at it.
#[derive(Default)]
pub(crate) struct States {
    known: Mutex<HashMap<(usize, u64), usize>>,
    histories: AtomicUsize,
}

impl States {
    /// Notes a state that a run found in which `inside` more crashes are tried; whether it was not looked at after that
    /// history, with as many.
    pub(super) fn note(&self, history: usize, inside: usize, state: &impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (history, hasher.finish());
        let is_new = known.get(&key).is_none_or(|&tried| tried < inside);
        if is_new {
            known.insert(key, inside);
        }
        is_new
    }

    /// The number of a history that no other one has.
    pub(super) fn fresh_history(&self) -> usize {
        usize::MAX - self.histories.fetch_add(1, Ordering::Relaxed)
    }

    /// How many were found.
    pub(super) fn count(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
