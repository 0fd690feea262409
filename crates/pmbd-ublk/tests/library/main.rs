//! pmbd through its public items: the tests that need no process of their own, as one program that builds what they share once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../nbd_common/mod.rs"]
mod nbd_common;

mod buffered_disks;
mod crash_engine;
mod disk;
mod engine;
mod nbd_fuzz;
mod nbd_handshake;
mod nbd_order;
mod nbd_requests;
mod write_policy;
