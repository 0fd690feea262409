//! Tests as they are generated from failures, with what they fail by.

mod calls;
mod order;
mod recovery;
