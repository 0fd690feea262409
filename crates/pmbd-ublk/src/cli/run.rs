//! Parses and runs the command line.

use super::args::{Cli, Command};
use super::log::last_words;
use super::{commands, log, serve};
use clap::{CommandFactory as _, Parser as _};
use serde_json::json;
use std::process::ExitCode;

/// The exit code for a wrong command line.
const USAGE: u8 = 2;

/// Parses and runs the command line.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // A command line that cannot be parsed is searched for --json.
        Err(error) if error.use_stderr() && std::env::args().any(|arg| arg == "--json") => {
            let message = error.render().to_string();
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            last_words(&json!({ "error": message.trim_end(), "causes": [], "help": null }).to_string());
            return ExitCode::from(USAGE);
        }
        Err(error) => error.exit(),
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

/// An error as JSON: what failed, why, and what would help.
fn error_object(report: &miette::Report) -> serde_json::Value {
    let causes: Vec<_> = report.chain().skip(1).map(ToString::to_string).collect();
    let help = report.help().map(|help| help.to_string());
    json!({ "error": report.to_string(), "causes": causes, "help": help })
}
