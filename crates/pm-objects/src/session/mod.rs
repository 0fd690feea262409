//! What all handles share: the objects that are known, their locks, and which of their chunks are in DRAM.

pub(crate) mod chunks;
pub(crate) mod control;
pub(crate) mod frames;
pub(crate) mod nesting;
pub(crate) mod placement;
pub(crate) mod shared;
