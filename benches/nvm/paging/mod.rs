//! Fig. 9: paging to slow and fast memories, by the kernel.

mod group;
mod measure;
mod thrash;

pub(crate) use group::missing;
pub(crate) use measure::{MEMORY_MIB, PATH, measure};
pub(crate) use thrash::serve;
