//! The operations on a tree, one in each file, with the line at which it is durable.

mod batch;
mod lend;
mod pop;
mod scan;

pub(crate) use batch::{Op, commit};
pub(crate) use pop::End;
pub(crate) use scan::{Bounds, Found, Scan, Side};
