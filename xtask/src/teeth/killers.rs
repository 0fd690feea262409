//! Which tests to ask first.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// So many of a file's killers go before the other tests.
const FIRST: usize = 3;

/// The tests that failed without a flush or fence, by the file in which that stands: they are likely to fail without its neighbours,
/// too. Tests are known by their numbers.
#[derive(Debug, Default)]
pub(super) struct Killers {
    /// The latest is the last.
    by_file: Mutex<BTreeMap<String, Vec<usize>>>,
}

impl Killers {
    /// The tests in the order in which they are to be asked about a site of `file`: the file's latest killers among them, and then the
    /// others as they stand.
    pub(super) fn first(&self, file: &str, tests: &[usize]) -> Vec<usize> {
        let by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let killers = by_file.get(file).into_iter().flatten().rev();
        let mut order: Vec<usize> =
            killers.filter(|test| tests.contains(test)).take(FIRST).copied().collect();
        let others: Vec<usize> = tests.iter().filter(|test| !order.contains(test)).copied().collect();
        order.extend(others);
        order
    }

    /// Remembers that a test failed without a flush or fence of `file`.
    pub(super) fn remember(&self, file: &str, killer: usize) {
        let mut by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = by_file.entry(file.to_owned()).or_default();
        tests.retain(|test| *test != killer);
        tests.push(killer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_killers_of_a_file_are_asked_first() {
        let killers = Killers::default();
        for killer in [5, 6, 7, 8, 5] {
            killers.remember("src/log.rs", killer);
        }
        assert_eq!(killers.first("src/log.rs", &[1, 2, 5, 7]), [5, 7, 1, 2]);
        assert_eq!(killers.first("src/log.rs", &[8, 7, 6, 5]), [5, 8, 7, 6], "no more than three of them");
        assert_eq!(killers.first("src/log.rs", &[1, 2]), [1, 2]);
        assert_eq!(killers.first("src/heap.rs", &[5, 1]), [5, 1]);
    }
}
