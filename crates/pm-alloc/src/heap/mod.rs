//! A heap: creating, opening, growing, checking, repairing and closing it.

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
