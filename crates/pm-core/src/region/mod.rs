//! Regions: persistent memory mapped into this process, and the seam on the bare instructions.

mod error;
mod file;
mod mapping;
mod medium;
mod open;
mod page_sync;
mod pmem;

pub use error::OpenError;
pub use medium::Medium;
pub use open::{HugePages, RegionOptions};
pub use pmem::Region;
