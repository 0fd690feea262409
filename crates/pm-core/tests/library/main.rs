//! pm-core through its public items: the tests that need no process of their own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counters;
mod crash_counters;
mod crash_pool;
mod crash_pool_kills;
mod failed_fence;
mod faults_pool;
mod format_golden;
mod handles;
mod histogram;
mod pairs;
mod pool;
mod pools;
mod random;
mod random_headers;
mod random_readers;
mod region;
mod roots;
mod roots_threads;

/// Whether everything is tried, and not only what takes seconds: `PM_TEST_DEPTH=deep`.
fn is_deep() -> bool {
    std::env::var_os("PM_TEST_DEPTH").is_some_and(|depth| depth == "deep")
}
