//! pmbd against other block servers. On this machine: over NBD against nbdkit. In a virtual machine with a
//! kernel that has ublk: against a ublk server that does nothing, and against the kernel's own devices.
//! `docs/benchmarks.md` says how to read the table.

mod guest;
mod native;

use clap::{Parser, ValueEnum};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use pm_bench::{Cli, Report};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// pmbd over NBD against nbdkit's memory plugin, and over ublk against a null target, brd and loop.
#[derive(Debug, Parser)]
#[command(name = "block", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// One part alone.
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
    /// The pmbd to measure; without it, one is built.
    #[arg(long, value_name = "FILE")]
    pmbd: Option<PathBuf>,
}

/// Where it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// NBD on this machine.
    Native,
    /// ublk in a virtual machine.
    Vm,
}

impl AsRef<Cli> for Options {
    fn as_ref(&self) -> &Cli {
        &self.cli
    }
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

fn main() -> Result<ExitCode> {
    let Some(options) = Cli::parse::<Options>() else { return Ok(ExitCode::SUCCESS) };
    let pmbd = match &options.pmbd {
        Some(path) => path.clone(),
        None => build_pmbd()?,
    };
    let mut report = Report::new("block");
    if options.wants(Part::Native) {
        native::measure(&options.cli, &pmbd, &mut report)?;
    }
    if options.wants(Part::Vm) {
        guest::measure(&options.cli, &pmbd, &mut report)?;
    }
    options.cli.finish(&report)
}

/// Builds pmbd as it is shipped; where it is then.
fn build_pmbd() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "pmbd-ublk", "--bin", "pmbd"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // Standard output is the report's.
        .stdout(Stdio::from(std::io::stderr()))
        .status()
        .into_diagnostic()
        .wrap_err("cannot run cargo")?;
    if !status.success() {
        bail!("pmbd does not build: {status}");
    }
    // This executable is in `release/deps` of the same target directory.
    let executable = std::env::current_exe().into_diagnostic()?;
    Ok(executable.ancestors().nth(2).unwrap_or(Path::new("target/release")).join("pmbd"))
}
