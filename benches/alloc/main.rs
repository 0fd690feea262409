//! Allocators: how many lines they write and how evenly, what they leave of a heap, and how long they take; and a server that
//! lives on one. `docs/benchmarks.md` says how to read the figures.

mod bound;
mod crossover;
mod fragmentation;
mod growth;
mod load;
mod malloc;
mod memcached;
mod opening;
mod ours;
mod pmdk;
mod threads;
mod transactions;
mod wear;
mod workload;

use clap::{Parser, ValueEnum};
use miette::Result;
use pm_bench::{Cli, Report};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::apt::{self, Need};

/// What is run here, beside what was compiled.
const NEEDS: [Need; 3] = [
    Need::new("valgrind", "valgrind"),
    Need::new("memcached", "memcached"),
    Need::new(malloc::JEMALLOC, "libjemalloc2"),
];

/// Wear, fragmentation and speed of allocators, on plans that are the same for all of them.
#[derive(Debug, Parser)]
#[command(name = "alloc", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// One part alone.
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
    /// The library with a malloc that memcached runs with instead of glibc's; ours, unless given.
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Writes to each line: 50,000 allocations, each block written once, and as many deallocations.
    Wear,
    /// What is left of the heap after a million operations, and how long they take.
    Fragmentation,
    /// Blocks that grow by realloc, against glibc and jemalloc.
    Growth,
    /// Durable operations against PMDK's, and against the lines and fences that they need.
    Pmdk,
    /// Redo against undo, for transactions of several shapes.
    Crossover,
    /// Two threads against one.
    Threads,
    /// memcached with another malloc.
    Memcached,
    /// A large heap whose program was killed: the first transaction, and a check of all of it.
    Opening,
}

fn main() -> Result<ExitCode> {
    if let Some(done) = opening::child() {
        return done;
    }
    let options = Options::parse();
    apt::ensure(&NEEDS)?;
    let wants = |part| options.only.is_none_or(|only| only == part);
    let mut report = Report::new("alloc");
    if wants(Part::Wear) {
        wear::measure(&options.cli, &mut report)?;
    }
    if wants(Part::Fragmentation) {
        fragmentation::measure(&options.cli, &mut report)?;
    }
    if wants(Part::Growth) {
        growth::measure(&options.cli, &mut report)?;
    }
    if wants(Part::Pmdk) {
        pmdk::measure(&options.cli, &mut report)?;
    }
    if wants(Part::Crossover) {
        crossover::measure(&options.cli, &mut report)?;
    }
    if wants(Part::Threads) {
        threads::measure(&options.cli, &mut report)?;
    }
    if wants(Part::Memcached) {
        memcached::measure(&options.cli, options.preload.as_deref(), &mut report)?;
    }
    if wants(Part::Opening) {
        opening::measure(&options.cli, &mut report)?;
    }
    options.cli.finish(&report)
}

/// Sizes of blocks: the two ranges of the paper.
const SIZES: [(&str, std::ops::RangeInclusive<u32>); 2] =
    [("10 B..4 KB", 10..=4096), ("10 B..256 B", 10..=256)];

/// A count with its thousands, as people read it.
fn human(count: u64) -> String {
    match count {
        1_000_000.. => format!("{:.2} M", count as f64 / 1e6),
        10_000.. => format!("{:.1} K", count as f64 / 1e3),
        _ => count.to_string(),
    }
}
