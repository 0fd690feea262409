//! The test programs of the workspace: built by cargo, run one by one.
//!
//! A test of a program that contains the simulator runs in a process of its own, because the simulator lists the flushes and fences of a process.

mod build;
mod package;
mod parallel;
mod program;

pub use build::build;
pub use package::{Package, packages};
pub use program::{Outcome, Program, Ran};

pub(crate) use parallel::in_parallel;
pub(crate) use program::{SITES, SUPPRESS};
