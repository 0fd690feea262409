//! Work on a whole file system: checks and repairs.

pub(crate) mod check;
pub(crate) mod repair;
