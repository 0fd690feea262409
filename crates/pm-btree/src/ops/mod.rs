//! The operations on a tree, each in one file with the line at which it is durable.

mod batch;
mod change;
mod get;
mod lend;
mod order;
mod pop;
mod put;
mod remove;
mod scan;
mod split;
mod split_point;

pub(crate) use batch::{Op, commit};
pub(crate) use change::{Expected, Outcome, record_bytes};
pub(crate) use get::{contains, get};
pub(crate) use lend::{Visit, lend};
pub(crate) use order::{Bounds, Side};
pub(crate) use pop::{End, lock_end};
pub(crate) use put::put;
pub(crate) use remove::remove;
pub(crate) use scan::{Found, Scan};
pub(crate) use split_point::siblings_max;
