//! `pmcrash`: traces of persistent memory from a shell. See `pmcrash --help`.
#![forbid(unsafe_code)]

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
use clap::{CommandFactory as _, Parser as _};
use std::process::ExitCode;

fn main() -> miette::Result<ExitCode> {
    let Cli { command, json } = Cli::parse();
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
