//! pm-objects through its public items, as one program that builds what its tests share once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corrupted;
mod crash;
mod failed_fences;
mod file;
mod format_golden;
mod full_pools;
mod handles;
mod kill;
mod model;
mod moves;
mod prices;
mod resizes;
mod room;
mod stale_handles;
mod threads;
mod tiers;

/// Whether everything is tried, and not only what takes seconds: `PM_TEST_DEPTH=deep`.
fn is_deep() -> bool {
    std::env::var_os("PM_TEST_DEPTH").is_some_and(|depth| depth == "deep")
}
