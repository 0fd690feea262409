//! One file per task: its arguments, and the steps it takes.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod fs_demo;
pub(crate) mod fuzz;
pub(crate) mod teeth;
pub(crate) mod test;
pub(crate) mod tidy;
pub(crate) mod vm;
