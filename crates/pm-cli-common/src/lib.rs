//! Shared by the commands `pm`, `pmbd`, `pmcrash` and `pmfs`: sizes as text, lines of results, and subcommands for shell completions and manual pages.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, reason = "an answer that cannot be written is an error")]

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use miette::{Context as _, IntoDiagnostic as _};
use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::OnceLock;

/// A number of bytes.
///
/// Parsed from a number with an optional suffix: `K`, `M`, `G` or `T` are powers of 1,024, optionally followed by `iB`. Displayed exactly, in
/// the largest unit of which it is a whole number; with a precision (`{:.1}`), in the largest unit that it reaches, rounded to so many digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = parse_size::Config::new().with_binary().parse_size(text);
        size.map(Self).map_err(|error| {
            format!("{error}; a size is a number with an optional suffix K, M, G or T: 1G, 512M, 4096")
        })
    }
}

// By hand: crates that format sizes round them, and a rounded size could be mistaken for another one.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: u64| self.0 >= unit && (f.precision().is_some() || self.0.is_multiple_of(unit));
        let (name, unit) = UNITS.into_iter().find(|(_, unit)| fits(*unit)).unwrap_or(UNITS[4]);
        match f.precision().filter(|_| !self.0.is_multiple_of(unit)) {
            Some(digits) => write!(f, "{:.digits$} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} {name}", self.0 / unit),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_in_binary_units() {
        for (text, bytes) in [
            ("1G", 1 << 30),
            ("512M", 512 << 20),
            ("4096", 4096),
            ("2t", 2 << 40),
            ("3KiB", 3072),
            ("7b", 7),
            ("1.5G", 3 << 29),
            ("1 G", 1 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "G", "1X", "-1", "99999999999G", "GiB", "1GG"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_displayed_exactly_or_rounded() {
        for (bytes, exact, rounded) in [
            (0, "0 bytes", "0 bytes"),
            (1023, "1023 bytes", "1023 bytes"),
            (1024, "1 KiB", "1 KiB"),
            (1536, "1536 bytes", "1.5 KiB"),
            ((3 << 30) + (1 << 29), "3584 MiB", "3.5 GiB"),
            ((64 << 20) + 1, "67108865 bytes", "64.0 MiB"),
            (5 << 40, "5 TiB", "5 TiB"),
            (1 << 60, "1048576 TiB", "1048576 TiB"),
        ] {
            assert_eq!(
                (Size(bytes).to_string(), format!("{:.1}", Size(bytes))),
                (exact.into(), rounded.into())
            );
        }
    }
}
