//! The options that every benchmark has, and how it ends.

use crate::Report;
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The command line of a benchmark; its own options stand beside these.
#[derive(Debug, Clone, clap::Args)]
pub struct Cli {
    /// Fewer and shorter rounds: shows that it works, and roughly where it stands.
    #[arg(long)]
    pub quick: bool,
    /// Print the JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// How many pairs of rounds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Fail, with exit code 1, when a ratio is below its goal.
    #[arg(long)]
    check: bool,
    /// Where NAME.json and NAME.svg go.
    #[arg(long, value_name = "DIR", default_value_os_t = default_directory())]
    out: PathBuf,
    /// What cargo says to every benchmark.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

impl Cli {
    /// The number of pairs: as asked for, or `full`, or `quick` of a quick run.
    #[must_use]
    pub fn round_count(&self, full: u32, quick: u32) -> usize {
        let count = self.rounds.unwrap_or(if self.quick { quick } else { full });
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// Prints and saves a report; the exit code that it deserves.
    ///
    /// # Errors
    /// When it cannot be saved.
    pub fn finish(&self, report: &Report) -> Result<ExitCode> {
        let path = report.save(&self.out).into_diagnostic().wrap_err("the report cannot be saved")?;
        if self.json {
            println!("{}", report.to_json());
        } else {
            print!("{}", report.table());
            println!("\n{}\n{}", path.display(), path.with_extension("svg").display());
        }
        let missed = report.missed();
        if self.check && !missed.is_empty() {
            eprintln!("{} of the goals were missed", missed.len());
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `bench` in the target directory, which is two above the directory of a benchmark's executable:
/// `release/deps`.
fn default_directory() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    executable.ancestors().nth(3).unwrap_or(Path::new("target")).join("bench")
}
