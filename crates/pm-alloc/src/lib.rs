//! A crash-safe heap for persistent memory.

#![forbid(unsafe_code)]

pub mod format;
pub mod layout;
