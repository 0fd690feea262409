//! A heap: made, opened, grown, described.

mod chunk_count;
mod close;
mod fenced;
mod handle;
mod header;
mod inspect;
mod inspection;
mod options;
mod pool;
mod repair;

pub use handle::{Heap, OpenReport};
pub use inspection::HeapInspection;
pub use options::HeapOptions;
pub use pool::HeapPool;
