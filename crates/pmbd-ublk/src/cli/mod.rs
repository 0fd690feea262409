//! The command `pmbd`.

mod args;
mod buffer;
mod commands;
mod error;
mod identity;
mod log;
mod open;
mod registry;
mod report;
mod run;
mod serve;
mod signals;
mod writes;

pub(crate) use run::main;
