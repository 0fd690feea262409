//! Figs 9 and 10: paging to slow and fast memories, by the kernel.

mod group;
mod kernels;
mod measure;
mod program;
mod programs;
mod thrash;

pub(crate) use group::missing;
pub(crate) use kernels::serve as serve_kernel;
pub(crate) use measure::{MEMORY_MIB, PATH, measure};
pub(crate) use programs::measure_programs;
pub(crate) use thrash::serve;
