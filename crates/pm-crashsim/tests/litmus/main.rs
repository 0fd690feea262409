//! The litmus tests of `docs/persistence-model.md`, each explored, and compared with what the model allows.
//!
//! An outcome is written as the digits of `x`, `y` (and `z`), all 0 at first. A name in lower case stands for what
//! the program did to one of these words.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod acks;
mod harness;
mod kills;
mod one_thread;
mod prop_images;
mod prop_litmus;
mod tearing;
mod threads;
