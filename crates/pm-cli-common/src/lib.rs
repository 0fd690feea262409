//! Shared by the commands `pm`, `pmbd`, `pmcrash` and `pmfs`: sizes as text, lines of results, subcommands for shell completions and manual pages, which
//! processes have a file open, and the options of servers that protect their memory or emulate a slower one.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, reason = "an answer that cannot be written is an error")]

mod emulation;
mod holder;
mod protect;
mod size;

pub use emulation::Emulation;
pub use holder::holders;
pub use protect::Protect;
pub use size::Size;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use miette::{Context as _, IntoDiagnostic as _};
use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

/// Prints a line of a command's result. A closed pipe is not an error: the reader has read enough.
///
/// # Errors
/// When the line cannot be written.
pub fn say(line: impl fmt::Display) -> miette::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).into_diagnostic().wrap_err("cannot write the answer")
        }
        _ => Ok(()),
    }
}

/// The first line that [`tell`] could not print.
static UNTOLD: OnceLock<miette::Report> = OnceLock::new();

/// As [`say`], for commands that print many lines: an error is the result of the command, by [`end`]. Returns false if no reader is left.
pub fn tell(line: impl fmt::Display) -> bool {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => false,
        Err(error) => {
            UNTOLD.get_or_init(|| unwritten(error));
            false
        }
    }
}

fn unwritten(error: std::io::Error) -> miette::Report {
    miette::Report::msg(error).wrap_err("cannot write the answer")
}

/// Parses the command line. Prints its errors, or the help if that is asked for: then the status of the command is returned. An error is printed as an
/// [object](error_object) if `--json` is anywhere on the command line.
///
/// # Errors
/// When the command has ended: with 2 if the command line is wrong, with 1 if the help cannot be written, and else with 0.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|error| {
        if error.use_stderr() && std::env::args_os().any(|word| word == "--json") {
            let message = error.render().to_string();
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            warn(serde_json::json!({ "error": message.trim_end(), "causes": [], "help": null }));
            return ExitCode::from(USAGE);
        }
        match error.print() {
            _ if error.use_stderr() => ExitCode::from(USAGE),
            Err(failed) if failed.kind() != std::io::ErrorKind::BrokenPipe => {
                warn(format_args!("Error: {}", unwritten(failed)));
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        }
    })
}

/// The exit code for a wrong command line.
const USAGE: u8 = 2;

/// Prints a line on standard error. If that is not possible, there is no place to say so.
fn warn(line: impl fmt::Display) {
    writeln!(std::io::stderr(), "{line}").unwrap_or_default();
}

/// An error as JSON: what failed, why, and what would help.
#[must_use]
pub fn error_object(error: &miette::Report) -> serde_json::Value {
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    let help = error.help().map(|help| help.to_string());
    serde_json::json!({ "error": error.to_string(), "causes": causes, "help": help })
}

/// The end of a command: with an error if a line could not be [told](tell). With `json`, prints an error as an [object](error_object) on standard error.
///
/// # Errors
/// The command's own error, and that of a line that was not told, unless they are printed.
pub fn end(ended: miette::Result<ExitCode>, json: bool) -> miette::Result<ExitCode> {
    let untold = || UNTOLD.get().map(|error| miette::Report::msg(error.to_string()));
    let error = match (ended, untold()) {
        (Ok(code), None) => return Ok(code),
        (Ok(_), Some(error)) | (Err(error), _) => error,
    };
    if !json {
        return Err(error);
    }
    warn(error_object(&error));
    Ok(ExitCode::FAILURE)
}

/// Subcommands that document a command: to be flattened into its subcommands.
#[derive(Debug, Subcommand)]
pub enum Docs {
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages into a directory.
    Man {
        /// The directory, which must exist.
        dir: PathBuf,
    },
}

impl Docs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// When the output cannot be written. A closed pipe is not an error.
    pub fn run(&self, mut command: clap::Command) -> miette::Result<()> {
        match self {
            Self::Completions { shell } => {
                let name = command.get_name().to_owned();
                // Through a buffer: the generator panics when it cannot write.
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut command, name, &mut script);
                let mut out = std::io::stdout().lock();
                match out.write_all(&script).and_then(|()| out.flush()) {
                    Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                        Err(error).into_diagnostic().wrap_err("writing completions")
                    }
                    _ => Ok(()),
                }
            }
            Self::Man { dir } => clap_mangen::generate_to(command, dir)
                .into_diagnostic()
                .wrap_err_with(|| format!("writing manual pages into {}", dir.display())),
        }
    }
}
