//! Pools. A pool is a region with an identity, a checksummed header with a backup, and named roots.

mod error;
pub mod format;
mod handle;
mod header;
mod leftover;
mod options;
mod root;
mod root_change;
mod roots;
mod shared;

pub use error::{HeaderCorruption, PlaceError, PoolError, RootError};
pub use handle::Pool;
pub use header::HeaderState;
pub use options::PoolOptions;
pub use root::{Root, RootWrite};
pub use root_change::RootChange;
pub use roots::RootDirectory;
