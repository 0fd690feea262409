//! Pools: a region with an identity, a header that survives corruption, and named roots.

mod error;
pub mod format;
mod handle;
mod header;
mod leftover;
mod logged_roots;
mod options;
mod root;
mod root_change;
mod root_slots;
mod roots;
mod shared;
mod uuid;
mod words;

pub use error::{PoolError, RootError};
pub use handle::Pool;
pub use header::{HeaderCorruption, HeaderState};
pub use logged_roots::LoggedRoots;
pub use options::PoolOptions;
pub use root::{Root, RootWrite};
pub use root_change::RootChange;
pub(crate) use shared::Shared;
pub use uuid::Uuid;
