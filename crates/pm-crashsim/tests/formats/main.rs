//! Trace files and logs of other tools: what is read from them, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod fuzz_formats;
mod import_pmemcheck;
mod import_real_logs;
mod trace_file;
