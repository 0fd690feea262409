//! Regions: persistent memory mapped into this process, and the implementation of the seam with bare instructions.

mod blocks;
mod copies;
mod error;
mod file;
mod lock;
mod mapping;
mod medium;
mod new_file;
mod options;
mod overlay;
mod page_sync;
mod pmem;
mod private_map;
mod process;
mod reread;

pub use error::OpenError;
pub use medium::Medium;
pub use options::{HugePages, RegionOptions};
pub use pmem::Region;
pub use process::ProcessId;
