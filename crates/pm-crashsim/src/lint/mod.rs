//! Checks that need no recovery: misuse of flushes and fences, found in the record of one run.

mod catalog;
mod extents;
mod finding;
mod levels;
mod occasion;
mod pass;
mod pending;
mod reads;
mod words;

pub use catalog::{Level, Lint};
pub use extents::{Leak, leaks};
pub use finding::{Finding, Role};
pub use levels::Lints;
pub use pass::lint;

pub(crate) use finding::{denied, merge};
