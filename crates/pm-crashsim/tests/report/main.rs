//! The report of a failure: shrunk to what matters, with its repair, drawn, and turned into a test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod drawing;
#[rustfmt::skip]
mod generated;
mod generating;
mod programs;
mod repairs;
mod replaying;
mod shrinking;
