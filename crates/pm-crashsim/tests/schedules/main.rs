//! Schedules of several threads, of loom and of shuttle: each is crashed everywhere.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod foreign_lock;
mod loom_queue;
mod queue;
mod shuttle_queue;
mod switching;
