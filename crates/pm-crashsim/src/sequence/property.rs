//! Sequences that proptest made up.

use super::runner::Sequences;
use super::subject::Oracle;
use proptest::test_runner::TestCaseError;

impl<S: Oracle> Sequences<S> {
    /// Crashes one sequence everywhere, inside of `proptest!`: which makes the sequence, and on a failure shortens it
    /// and its arguments. Needs the feature `proptest`.
    ///
    /// Its body is one line, for a strategy that makes a `Vec` of operations:
    /// `Sequences::new(Log, 4096)?.property(&ops)?`.
    ///
    /// # Errors
    /// The first failure found.
    pub fn property(&self, ops: &[S::Op]) -> Result<(), TestCaseError> {
        let explored = self.explore_once(ops, &[]);
        explored.map(|_| ()).map_err(|mut failure| {
            // Run again, proptest begins with the sequence that it had not shortened yet, in which this crash has
            // another name.
            failure.origin.test = None;
            TestCaseError::fail(failure.to_string())
        })
    }
}
