//! The states that recoveries found, so that what is the same need not be looked at again.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// States by their hashes, each with the number of the history that it was found after.
#[derive(Default)]
pub(crate) struct States(Mutex<HashSet<(usize, u64)>>);

impl States {
    /// Notes a state; whether it was not known after that history.
    pub(super) fn note(&self, history: usize, state: &impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert((history, hasher.finish()))
    }

    /// How many were found.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
