//! The simulator under its former name, for the tests that use that.

#[path = "../sim/mod.rs"]
mod sim;

pub(crate) use sim::*;
