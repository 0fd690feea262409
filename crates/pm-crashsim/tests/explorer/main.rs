//! The explorer and its subjects: crashes, kills, media faults, sequences of operations.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the reports' tests use the others")]
#[path = "../report/programs.rs"]
mod programs;

mod after_recovery;
mod crashes;
mod faults;
mod harness;
mod kills;
mod pairs;
mod prop_sequences;
mod search;
mod sequences;
mod subjects;
