//! `pmcrash`: traces of persistent memory from a shell. See `pmcrash --help`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, reason = "an answer that cannot be written is an error")]

mod args;
mod check;
mod import;
mod interrupt;
mod io;
mod minimise;
mod replay;
mod select;
mod show;

use args::{Cli, Command, Import};
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
        Command::Show(show) => show::run(&show, json)?,
        Command::Filter(filter) => show::filter(&filter, json)?,
        Command::Import(Import::Pmemcheck(import)) => import::pmemcheck(&import, json)?,
        Command::Replay(replay) => return replay::run(&replay, json),
        Command::Minimise(minimise) => return minimise::run(&minimise, json),
        Command::Docs(docs) => docs.run(Cli::command())?,
    }
    Ok(ExitCode::SUCCESS)
}
