//! `pmfs cp`: copies between the host and a file system that is not mounted.

mod command;
mod export;
mod import;
mod tally;

pub(crate) use command::{Cp, run};
