//! pmbd's design space: protections and write schemes against an unprotected device that stores around the cache, at the engine and over NBD, on
//! ordinary and on huge pages. After Figs. 3, 5, 6, 8, 9 and 11 of PMBD (MSST 2014).

mod engine;
mod memory;
mod nbd;

use clap::{Parser, ValueEnum};
use memory::Memory;
use miette::Result;
use pm_bench::{Cli, Report};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::pmbd;

/// Protections and write schemes of pmbd, each against an unprotected device with non-temporal stores.
#[derive(Debug, Parser)]
#[command(name = "pmbd", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Only this part.
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
    /// Only the rows of the engine whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    row: String,
    /// The pmbd to measure [default: built from this repository].
    #[arg(long, value_name = "FILE")]
    pmbd: Option<PathBuf>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The engine, called directly.
    Engine,
    /// Clients over NBD.
    Nbd,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let wants = |part| options.only.is_none_or(|only| only == part);
    let mut report = Report::new("pmbd");
    let memories = Memory::all(&mut report)?;
    if wants(Part::Engine) {
        engine::measure(&options.cli, &options.row, &memories, &mut report)?;
    }
    if wants(Part::Nbd) {
        let pmbd = match &options.pmbd {
            Some(path) => path.clone(),
            None => pmbd::build(&["--release"])?,
        };
        nbd::measure(&options.cli, &pmbd, &memories, &mut report)?;
    }
    options.cli.finish(&report)
}
