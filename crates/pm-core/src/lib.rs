//! Persistent memory for Rust: instructions, mappings, persistence domains, and one seam for all of it.

pub mod insn;
pub mod line;

mod counting;
mod domain;
mod pmem;
mod region;

pub use counting::{Counting, Counts};
pub use domain::Domain;
pub use pmem::{FenceError, Pmem};
pub use region::{HugePages, Medium, OpenError, Region, RegionOptions};
