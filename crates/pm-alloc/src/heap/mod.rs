//! A heap: created, opened, grown, checked, repaired, closed.

mod error;
mod handle;
mod header;
mod options;
mod pool;
mod report;

pub use error::HeapError;
pub use handle::Heap;
pub use options::HeapOptions;
pub use pool::HeapPool;
pub use report::{HeapInspection, OpenReport};
