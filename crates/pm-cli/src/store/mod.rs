//! `pm store`: ordered key/value stores.

mod args;
mod cluster;
mod commands;
mod dump;
mod failure;
mod handle;
mod input;
mod kind;
mod load;
mod progress;
mod table;

pub(crate) use args::StoreCommand;
pub(crate) use commands::run;
