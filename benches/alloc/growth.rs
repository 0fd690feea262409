//! Blocks that grow by `realloc`, as strings and arrays do.

use crate::malloc::Malloc;
use crate::workload::nanoseconds;
use miette::Result;
use pm_bench::{Cli, Goal, Report, Row, Side, rounds};
use std::process::Command;

/// `c/alloc_growth.c`, compiled.
const ALLOC_GROWTH: &str = env!("PM_BENCH_ALLOC_GROWTH");

/// What it can do, and what the report calls it.
const PATTERNS: [(&str, &str); 3] = [
    ("append", "realloc, by 256 B to 4 MB"),
    ("in-turn", "realloc, 8 blocks in turn by 256 B to 0.5 MB"),
    ("double", "realloc, doubling to 32 MB"),
];

/// Room for what is left behind while blocks move.
const HEAP_BYTES: u64 = 128 << 20;

/// Measures ours against glibc's and jemalloc's, each time in a new process, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let ours = Malloc::ours()?;
    let [glibc, _, jemalloc] = Malloc::rivals()?;
    for (pattern, name) in PATTERNS {
        for (rival, goal) in [(&glibc, Goal::AtLeast(0.25)), (&jemalloc, Goal::None)] {
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
