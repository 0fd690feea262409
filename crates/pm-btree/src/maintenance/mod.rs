//! What concerns all leaves of a store: the sweep after an open, compaction, and checks.

mod check;
mod compact;
mod room;
mod sweep;
mod unlink;

pub(crate) use check::check_tree;
pub use check::{CheckReport, StoreStats};
pub(crate) use compact::compact;
pub use room::Room;
pub(crate) use sweep::Sweep;
pub(crate) use unlink::{unlink_all, unlink_all_due, unlink_due};
