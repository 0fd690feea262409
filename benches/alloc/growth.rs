//! Blocks that grow by `realloc`, like strings and arrays.

use crate::malloc::Malloc;
use crate::workload::nanoseconds;
use miette::Result;
use pm_bench::{Cli, Report, Side, rounds};
use std::process::Command;

/// `c/alloc_growth.c`, compiled.
const ALLOC_GROWTH: &str = env!("PM_BENCH_ALLOC_GROWTH");

/// The program's argument, the name in the report, and the goal against glibc. The last has no goal: glibc moves untouched pages by `mremap`; a heap
/// in a file reserves them, so that on a full file system `realloc` returns `NULL` instead of a later SIGBUS.
const PATTERNS: [(&str, &str, Option<f64>); 4] = [
    ("append", "realloc, by 256 B to 4 MB", Some(0.25)),
    ("in-turn", "realloc, 8 blocks in turn by 256 B to 0.5 MB", Some(0.25)),
    ("double", "realloc, doubling to 32 MB, filled", Some(0.25)),
    ("untouched", "realloc, doubling to 32 MB, untouched", None),
];

/// Includes the space that blocks leave when they move.
const HEAP_BYTES: u64 = 128 << 20;

/// Measures ours against glibc's and jemalloc's, each run in a new process, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let ours = Malloc::ours()?;
    let [glibc, _, jemalloc] = Malloc::rivals()?;
    for (pattern, name, goal) in PATTERNS {
        for (rival, goal) in [(&glibc, goal), (&jemalloc, None)] {
            eprintln!("growth, {pattern}, against {}", rival.name);
            let [pairs] = rounds(cli.round_count(31, 3), |side| {
                let malloc = if side == Side::Ours { &ours } else { rival };
                let mut command = Command::new(ALLOC_GROWTH);
                let _heap = malloc.apply(HEAP_BYTES, command.arg(pattern))?;
                Ok([1e9 / nanoseconds(&mut command)?])
            })?;
            report.row(name, rival.name, "1/s", pairs, goal);
        }
    }
    Ok(())
}
