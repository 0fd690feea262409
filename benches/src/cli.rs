//! The options of every benchmark, and its exit.

use crate::Report;
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options that all benchmarks have.
#[derive(Debug, Clone, clap::Args)]
pub struct Cli {
    /// Fewer and shorter rounds, for a rough result.
    #[arg(long)]
    pub quick: bool,
    /// Print the JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// The number of pairs of rounds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// End with exit code 1 if a ratio is below its goal.
    #[arg(long)]
    check: bool,
    /// The directory for NAME.json and NAME.svg.
    #[arg(long, value_name = "DIR", default_value_os_t = default_directory())]
    out: PathBuf,
    /// Passed by cargo to every benchmark.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

impl Cli {
    /// The number of pairs: as given on the command line, or else `quick` for a quick run and `full` for others.
    #[must_use]
    pub fn round_count(&self, full: u32, quick: u32) -> usize {
        let count = self.rounds.unwrap_or(if self.quick { quick } else { full });
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// The directory of the reports.
    #[must_use]
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Prints and saves a report, and returns the exit code.
    pub fn finish(&self, report: &Report) -> Result<ExitCode> {
        let path = report.save(&self.out).into_diagnostic().wrap_err("the report cannot be saved")?;
        if self.json {
            println!("{}", report.to_json());
        } else {
            print!("{}", report.table());
            println!("\n{}\n{}", path.display(), path.with_extension("svg").display());
        }
        let missed = report.missed_count();
        if self.check && missed > 0 {
            eprintln!("{missed} of the goals were missed");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `bench` in the target directory. A benchmark's executable is in `release/deps` there.
fn default_directory() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    executable.ancestors().nth(3).unwrap_or(Path::new("target")).join("bench")
}
