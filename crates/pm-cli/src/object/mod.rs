//! `pm object`: named objects.

mod args;
mod commands;
mod failure;
mod import;
mod pool;

pub(crate) use args::ObjectCommand;
pub(crate) use commands::run;
