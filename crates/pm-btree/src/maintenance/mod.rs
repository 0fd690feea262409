//! What concerns all leaves of a store: the sweep after an open, compaction, and checks.

mod check;
mod compact;
mod sweep;

pub(crate) use check::check_tree;
pub use check::{CheckReport, StoreStats};
pub(crate) use compact::compact;
pub(crate) use sweep::Sweep;
