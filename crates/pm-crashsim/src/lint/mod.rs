//! Checks that need no recovery: misuse of flushes and fences, found in the record of one run.

mod catalog;
mod finding;
mod leaks;
mod pass;
mod pending;
mod reads;

pub use catalog::{Level, Lint, Lints};
pub use finding::{Finding, Role};
pub(crate) use finding::{denied, merge};
pub use leaks::{Leak, leaks};
pub use pass::lint;
