//! Tests of the log: every crash of a few commits, counts, properties.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crash_commit;
mod crash_recover;
mod crash_undo;
mod failures;
mod prices;
mod prop_log;
mod prop_writes;
mod support;
