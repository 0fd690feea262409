//! Blocks that grow by `realloc`, as strings and arrays do.

use crate::malloc::Malloc;
use crate::workload::nanoseconds;
use miette::Result;
use pm_bench::{Cli, Goal, Report, Row, Side, rounds};
use std::process::Command;

/// `c/alloc_growth.c`, compiled.
const ALLOC_GROWTH: &str = env!("PM_BENCH_ALLOC_GROWTH");

/// What it can do, what the report calls it, and what is asked of it against glibc. The last has no goal: glibc moves its pages, untouched,
/// by `mremap`; a heap in a file reserves them, so that a full file system is `NULL` now, and not SIGBUS when they are touched.
const PATTERNS: [(&str, &str, Goal); 4] = [
    ("append", "realloc, by 256 B to 4 MB", Goal::AtLeast(0.25)),
    ("in-turn", "realloc, 8 blocks in turn by 256 B to 0.5 MB", Goal::AtLeast(0.25)),
    ("double", "realloc, doubling to 32 MB, filled", Goal::AtLeast(0.25)),
    ("untouched", "realloc, doubling to 32 MB, untouched", Goal::None),
];

/// Room for what is left behind while blocks move.
const HEAP_BYTES: u64 = 128 << 20;

/// Measures ours against glibc's and jemalloc's, each time in a new process, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let ours = Malloc::ours()?;
    let [glibc, _, jemalloc] = Malloc::rivals()?;
    for (pattern, name, goal) in PATTERNS {
        for (rival, goal) in [(&glibc, goal), (&jemalloc, Goal::None)] {
            eprintln!("growth, {pattern}, against {}", rival.name);
            let pairs = rounds(cli.round_count(31, 3), |side| {
                let malloc = if side == Side::Ours { &ours } else { rival };
                let mut command = Command::new(ALLOC_GROWTH);
                let _heap = malloc.apply(HEAP_BYTES, command.arg(pattern))?;
                Ok::<_, miette::Report>(1e9 / nanoseconds(&mut command)?)
            })?;
            report.push(Row::new(name, rival.name, "1/s", pairs, goal));
        }
    }
    Ok(())
}
