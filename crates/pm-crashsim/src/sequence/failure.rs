//! A sequence that failed, and the crash that shows it.

use crate::Failure;
use core::fmt;

/// The fewest operations found that fail, and how.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test tells the story.
#[derive(Clone)]
#[non_exhaustive]
pub struct SequenceFailure<Op> {
    /// The operations. As few as [`Sequences::explore`](crate::Sequences::explore) could make them.
    pub ops: Vec<Op>,
    /// The crash, and what was wrong after it: which operations had returned, what was found, what is allowed.
    pub failure: Box<Failure>,
}

impl<Op: fmt::Debug> fmt::Display for SequenceFailure<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ops.len() {
            1 => f.write_str("1 operation fails")?,
            count => write!(f, "{count} operations fail")?,
        }
        write!(f, ", {:?}: {}", self.ops, self.failure)
    }
}

impl<Op: fmt::Debug> fmt::Debug for SequenceFailure<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<Op: fmt::Debug> core::error::Error for SequenceFailure<Op> {}
