//! A heap: made, opened, grown, described.

mod handle;
mod header;
mod inspect;
mod inspection;
mod options;
mod repair;

pub use handle::{Heap, Opened};
pub use inspection::HeapInspection;
pub use options::HeapOptions;
