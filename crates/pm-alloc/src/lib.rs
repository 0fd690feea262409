//! A crash-safe heap for persistent memory.

#![forbid(unsafe_code)]

pub mod format;
pub mod layout;

#[cfg_attr(not(test), expect(dead_code, unused_imports, reason = "the heap will be built on it"))]
mod log;
mod sync;

pub use log::{CommitError, Inspection, LaneInspection, RecoverError};
