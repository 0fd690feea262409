//! Tests of the log: crashes at every point of a few commits, costs in lines and fences, and properties of random transactions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

// Loom atomics work only in its models.
#[cfg(not(loom))]
mod announced;
#[cfg(not(loom))]
mod corruption;
#[cfg(not(loom))]
mod crash_commit;
#[cfg(not(loom))]
mod crash_corrupted;
#[cfg(not(loom))]
mod crash_pair;
#[cfg(not(loom))]
mod crash_recover;
#[cfg(not(loom))]
mod crash_restored;
#[cfg(not(loom))]
mod crash_undo;
#[cfg(not(loom))]
mod failures;
#[cfg(loom)]
mod loom_log;
#[cfg(not(loom))]
mod prices;
#[cfg(not(loom))]
mod prop_log;
#[cfg(not(loom))]
mod prop_writes;
#[cfg_attr(loom, expect(dead_code, reason = "most of it is for the tests above"))]
mod support;
