//! `pm`: inspects and repairs pools and heaps, and reads and writes stores and objects. See `pm --help`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, reason = "an answer that cannot be written is an error")]

mod args;
mod cells;
mod error;
mod findings;
mod heap;
mod map;
mod object;
mod pool;
mod repair;
mod report;
mod store;
mod svg;
mod view;

use args::{Cli, Command, HeapCommand, PoolCommand};
use clap::CommandFactory as _;
use std::process::ExitCode;

fn main() -> miette::Result<ExitCode> {
    match pm_cli_common::parse() {
        Ok(Cli { command, json }) => pm_cli_common::end(run(command, json), json),
        Err(code) => Ok(code),
    }
}

fn run(command: Command, json: bool) -> miette::Result<ExitCode> {
    match command {
        Command::Pool(PoolCommand::Info(args)) => pool::info(&args, json)?,
        Command::Pool(PoolCommand::Check(args)) => return pool::check(&args, json),
        Command::Pool(PoolCommand::Repair(args)) => return pool::repair(&args, json),
        Command::Heap(HeapCommand::Create(args)) => heap::create(&args, json)?,
        Command::Heap(HeapCommand::Info(args)) => heap::info(&args, json)?,
        Command::Heap(HeapCommand::Check(args)) => return heap::check(&args, json),
        Command::Heap(HeapCommand::Repair(args)) => return repair::run(&args, json),
        Command::Heap(HeapCommand::Map(args)) => map::run(&args, json)?,
        Command::Store(command) => return store::run(&command, json),
        Command::Object(command) => return object::run(&command, json),
        Command::Docs(docs) => docs.run(Cli::command())?,
    }
    Ok(ExitCode::SUCCESS)
}
