//! Allocators: wear, fragmentation and speed, and a server that runs on them. `docs/benchmarks.md` explains the figures.

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

/// The programs and libraries that are compared.
const NEEDS: [Need; 3] = [
    Need::new("valgrind", "valgrind"),
    Need::new("memcached", "memcached"),
    Need::new(malloc::JEMALLOC, "libjemalloc2"),
];

/// Wear, fragmentation and speed of allocators, each with the same plans.
#[derive(Debug, Parser)]
#[command(name = "alloc", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Only this part.
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
    /// The library with the malloc for memcached [default: libpmalloc.so].
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Writes to each line: 50,000 allocations, each block written once, and as many deallocations.
    Wear,
    /// Fragmentation of the heap by a million operations, and their time.
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
    /// A large heap after its program was killed: the time to the first transaction, and of a full check.
    Opening,
}

fn main() -> Result<ExitCode> {
    if let Some(done) = opening::child() {
        return done;
    }
    let options = Options::parse();
    apt::ensure(&NEEDS)?;
    let mut report = Report::new("alloc");
    let wanted = |part: &&Part| options.only.is_none_or(|only| only == **part);
    for part in Part::value_variants().iter().filter(wanted) {
        let measure = match part {
            Part::Wear => wear::measure,
            Part::Fragmentation => fragmentation::measure,
            Part::Growth => growth::measure,
            Part::Pmdk => pmdk::measure,
            Part::Crossover => crossover::measure,
            Part::Threads => threads::measure,
            Part::Memcached => {
                memcached::measure(&options.cli, options.preload.as_deref(), &mut report)?;
                continue;
            }
            Part::Opening => opening::measure,
        };
        measure(&options.cli, &mut report)?;
    }
    options.cli.finish(&report)
}

/// The two ranges of block sizes of the paper.
const SIZES: [(&str, std::ops::RangeInclusive<u32>); 2] =
    [("10 B..4 KB", 10..=4096), ("10 B..256 B", 10..=256)];

/// A count in thousands or millions.
fn human(count: u64) -> String {
    match count {
        1_000_000.. => format!("{:.2} M", count as f64 / 1e6),
        10_000.. => format!("{:.1} K", count as f64 / 1e3),
        _ => count.to_string(),
    }
}
