//! The log and the state in the tables of one store.

mod core;
mod lengths;
mod pending;
mod queue;
mod state;
mod tables;
mod view;
mod writer;

pub(crate) use core::Core;
pub use tables::Applied;
pub(crate) use writer::Writer;
