//! Parses and runs the command line.

use super::args::{Cli, Command};
use super::{commands, serve};
use anstream::{AutoStream, ColorChoice};
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
            eprintln!("{}", json!({ "error": message.trim_end(), "causes": [], "help": null }));
            return ExitCode::from(USAGE);
        }
        Err(error) => error.exit(),
    };
    start_log();
    let json = cli.json;
    run(cli).unwrap_or_else(|report| {
        if json {
            eprintln!("{}", error_object(&report));
        } else {
            eprintln!("Error: {report:?}");
        }
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

/// Logs to stderr, by default warnings; `RUST_LOG` selects. In colour on a terminal.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // As clap decides for `--help`.
    let colour = AutoStream::choice(&std::io::stderr()) != ColorChoice::Never;
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colour).with_writer(std::io::stderr).init();
}
