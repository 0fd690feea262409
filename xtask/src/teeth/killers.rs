//! Which tests to ask first.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// So many tests are asked alone before whole programs are.
const FIRST: usize = 3;

/// One test of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Test {
    /// The program's number.
    pub program: usize,
    /// The test's name, as libtest prints it.
    pub name: String,
}

/// The tests that missed something, by the file that it was missing from: they are likely to miss what stands next to
/// it, too, and one test is much quicker than all of a program's.
#[derive(Debug, Default)]
pub(super) struct Killers {
    /// The latest is the last.
    by_file: Mutex<BTreeMap<String, Vec<Test>>>,
}

impl Killers {
    /// Those to be asked about a site in `file`, which `programs` exercise; the latest first.
    pub(super) fn of(&self, file: &str, programs: &[usize]) -> Vec<Test> {
        let by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = by_file.get(file).into_iter().flatten().rev();
        tests.filter(|test| programs.contains(&test.program)).take(FIRST).cloned().collect()
    }

    /// Remembers that a test missed something in `file`.
    pub(super) fn remember(&self, file: &str, killer: Test) {
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
        let test = |program, name: &str| Test { program, name: name.to_owned() };
        for (program, name) in [(1, "a"), (1, "b"), (2, "a"), (3, "c"), (1, "a")] {
            killers.remember("src/log.rs", test(program, name));
        }
        assert_eq!(killers.of("src/log.rs", &[1, 2]), [test(1, "a"), test(2, "a"), test(1, "b")]);
        assert_eq!(killers.of("src/log.rs", &[1, 2, 3]), [test(1, "a"), test(3, "c"), test(2, "a")]);
        assert_eq!(killers.of("src/log.rs", &[4]), []);
        assert_eq!(killers.of("src/heap.rs", &[1]), []);
    }
}
