//! What all handles share: the objects that are known, and their locks.

pub(crate) mod control;
pub(crate) mod nesting;
pub(crate) mod shared;
