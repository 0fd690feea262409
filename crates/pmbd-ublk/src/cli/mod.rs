//! The command `pmbd`.

mod args;
mod commands;
mod error;
mod registry;
mod report;
mod serve;

use args::{Cli, Command};
use clap::{CommandFactory as _, Parser as _};
use std::process::ExitCode;

/// Reads the command line and does what it says.
pub(crate) fn main() -> miette::Result<ExitCode> {
    let cli = Cli::parse();
    start_log();
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

/// Logs go to stderr; `RUST_LOG` chooses, warnings unless said.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
