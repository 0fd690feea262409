//! pmbd against other block servers: on this machine over NBD against nbdkit; in a virtual machine over ublk against a server that moves no data,
//! and against devices of the kernel. `docs/benchmarks.md` explains the table.

mod guest;
mod native;

use clap::{Parser, ValueEnum};
use miette::Result;
use pm_bench::{Cli, Report};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::pmbd;

/// pmbd over NBD against nbdkit's memory plugin, and over ublk against a null target, brd and loop.
#[derive(Debug, Parser)]
#[command(name = "block", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Only this part.
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
    /// The pmbd to measure [default: built from this repository].
    #[arg(long, value_name = "FILE")]
    pmbd: Option<PathBuf>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// NBD on this machine.
    Native,
    /// ublk in a virtual machine.
    Vm,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let pmbd = match &options.pmbd {
        Some(path) => path.clone(),
        None => pmbd::build(&["--release"])?,
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
