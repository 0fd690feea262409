//! A heap: made, opened, grown, described.

mod handle;
mod header;
mod inspect;
mod options;

pub use handle::{Heap, Opened};
pub use options::HeapOptions;
