//! One file per task: its arguments, and the steps it takes.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod fs_demo;
mod fs_suites;
pub(crate) mod fuzz;
mod mounted;
pub(crate) mod steps;
pub(crate) mod teeth;
pub(crate) mod test;
pub(crate) mod tidy;
pub(crate) mod vm;
