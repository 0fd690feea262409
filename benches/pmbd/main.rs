//! pmbd's design space: protections and write schemes against an unprotected device that stores around the cache, at the engine and over NBD, on
//! ordinary and on huge pages. After Figs. 3, 5, 6, 8, 9 and 11 of PMBD (MSST 2014). And inserts into a store whose pages are closed late, after NVMalloc.

mod engine;
mod guest;
mod inserts;
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
    /// Only the rows of the engine and of inserts whose names contain this.
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
    /// Inserts into a store over a protected region.
    Inserts,
    /// Write schemes below a file system, in a virtual machine.
    Guest,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let wants = |part| options.only.is_none_or(|only| only == part);
    let mut report = Report::new("pmbd");
    let memories = Memory::all(&mut report)?;
    if wants(Part::Engine) {
        engine::measure(&options.cli, &options.row, &memories, &mut report)?;
    }
    let pmbd = || options.pmbd.clone().map_or_else(|| pmbd::build(&["--release"]), Ok);
    if wants(Part::Nbd) {
        nbd::measure(&options.cli, &pmbd()?, &memories, &mut report)?;
    }
    if wants(Part::Inserts) {
        inserts::measure(&options.cli, &options.row, &mut report)?;
    }
    if wants(Part::Guest) {
        guest::measure(&options.cli, &pmbd()?, &mut report)?;
    }
    options.cli.finish(&report)
}
