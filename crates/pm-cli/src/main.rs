//! `pm`: looks at pools and heaps, and repairs them. `pm --help` says how.
#![forbid(unsafe_code)]

mod args;
mod ask;
mod cells;
mod check;
mod create;
mod error;
mod findings;
mod info;
mod map;
mod pool;
mod repair;
mod report;
mod roots;
mod svg;
mod view;
mod wear;

use args::{Cli, Command, HeapCommand, PoolCommand};
use clap::{CommandFactory as _, Parser as _};
use std::process::ExitCode;

fn main() -> miette::Result<ExitCode> {
    let Cli { command, json } = Cli::parse();
    match command {
        Command::Pool(PoolCommand::Info(args)) => pool::info(&args, json)?,
        Command::Pool(PoolCommand::Check(args)) => return pool::check(&args, json),
        Command::Pool(PoolCommand::Repair(args)) => return pool::repair(&args, json),
        Command::Heap(HeapCommand::Create(args)) => create::run(&args, json)?,
        Command::Heap(HeapCommand::Info(args)) => info::run(&args, json)?,
        Command::Heap(HeapCommand::Check(args)) => return check::run(&args, json),
        Command::Heap(HeapCommand::Repair(args)) => return repair::run(&args, json),
        Command::Heap(HeapCommand::Map(args)) => map::run(&args, json)?,
        Command::Docs(docs) => docs.run(Cli::command())?,
    }
    Ok(ExitCode::SUCCESS)
}
