//! pm-btree through its public items, as one program that builds what its tests share once.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod crash;
mod crash_batch;
mod crash_growth;
mod crash_index;
mod crash_removal;
mod format_golden;
mod kill;
mod model;
mod prices;
mod store;

/// Whether everything is tried, and not only what takes seconds: `PM_TEST_DEPTH=deep`.
fn is_deep() -> bool {
    std::env::var_os("PM_TEST_DEPTH").is_some_and(|depth| depth == "deep")
}
