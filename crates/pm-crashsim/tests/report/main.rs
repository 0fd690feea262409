//! The report of a failure: shrunk to what matters, with its repair, drawn, and turned into a test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod programs;
mod repairs;
mod shrinking;
