//! Parses and runs the command line.

use super::args::{Cli, Command};
use super::log::last_words;
use super::{commands, log, serve};
use clap::CommandFactory as _;
use pm_cli_common::error_object;
use std::process::ExitCode;

/// Parses and runs the command line.
pub(crate) fn main() -> ExitCode {
    let cli: Cli = match pm_cli_common::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let log = log::start();
    let json = cli.json;
    let ended = run(cli);
    // Its lines come before the error.
    drop(log);
    ended.unwrap_or_else(|report| {
        last_words(&if json { error_object(&report).to_string() } else { format!("Error: {report:?}") });
        ExitCode::FAILURE
    })
}

fn run(cli: Cli) -> miette::Result<ExitCode> {
    match cli.command {
        Command::Serve(serve) => serve::run(&serve, cli.json)?,
        Command::Create(create) => commands::create(&create, cli.json)?,
        Command::Info(info) => commands::info(&info, cli.json)?,
        Command::List => commands::list(cli.json)?,
        Command::Stop(stop) => commands::stop(&stop, cli.json)?,
        Command::Check(check) => return commands::check(&check, cli.json),
        Command::Docs(docs) => docs.run(Cli::command())?,
    }
    Ok(ExitCode::SUCCESS)
}
