//! A crash-safe heap for persistent memory.

#![forbid(unsafe_code)]

pub mod format;
pub mod layout;
#[cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "what the transactions stand on, before they do")
)]
mod space;
mod sync;

pub use space::{CheckReport, ChunkReport, Damage, DamageKind, FreeError, SpaceError, SpaceStats};
