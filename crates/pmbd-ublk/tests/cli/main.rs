//! The command as a user runs it: its messages and exit codes, also for bad input, which changes nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corruption;
mod log;
mod namespaces;
#[path = "../nbd_common/mod.rs"]
mod nbd_common;
mod refusals;
mod scratch;
mod serving;
mod writes;
