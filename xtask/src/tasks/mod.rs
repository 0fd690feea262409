//! One file per task: its arguments, and the steps it takes.

pub(crate) mod demo;
pub(crate) mod vm;
