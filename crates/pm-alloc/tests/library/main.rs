//! pm-alloc through its public items: the tests that need no process of their own, as one program that builds what they share once.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::too_many_lines,
    reason = "a test fails by panicking"
)]

mod counters;
mod crash;
mod discarding;
mod fixed_length;
mod format_golden;
mod harness;
mod heap;
mod kill;
mod links;
mod prop_header;
mod protected;
mod queues;
mod random;
mod sim;
mod stray;

/// Whether everything is tried, and not only what takes seconds: `PM_TEST_DEPTH=deep`.
fn is_deep() -> bool {
    std::env::var_os("PM_TEST_DEPTH").is_some_and(|depth| depth == "deep")
}
