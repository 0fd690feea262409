//! fio over NBD, one client.

use crate::memory::Memory;
use miette::Result;
use pm_bench::fio::{Access, Job};
use pm_bench::{Cli, Disk, Report, Side, rounds};
use std::path::Path;
use std::time::Duration;
use xtask::apt::{self, Need};

const SIZE_BYTES: u64 = 256 << 20;

/// Protections, their options, and the goals of random writes on huge pages: 4 KiB and 256 KiB, each at depth 1 and 16.
const PROTECTIONS: [(&str, &[&str], [f64; 4]); 4] = [
    ("unmapped", &["--protect", "unmapped"], [0.95, 0.85, 0.90, 0.85]),
    ("page-table", &["--protect", "page-table"], [0.90, 0.70, 0.90, 0.85]),
    ("private-map", &["--protect", "private-map"], [0.70, 0.35, 0.80, 0.70]),
    // Of sequential writes.
    (BATCHED, &["--protect", "page-table", "--buffer", "16M"], [0.95, 0.90, 0.80, 0.70]),
];

const BATCHED: &str = "page-table, batched";

/// Measures, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, pmbd: &Path, memories: &[Memory], report: &mut Report) -> Result<()> {
    apt::ensure(&[Need::new("fio", "fio")])?;
    let round_count = cli.round_count(5, 2);
    let runtime = Duration::from_millis(if cli.quick { 200 } else { 500 });
    report.fact("nbd_rounds", round_count);
    for memory in memories.iter().filter(|memory| memory.has_huge_pages || !cli.quick) {
        let plain = Disk::serve(pmbd, memory.path(), SIZE_BYTES, &[])?;
        for (method, options, goals) in PROTECTIONS {
            let window = if memory.has_huge_pages { &["--window", "2M"][..] } else { &[] };
            let options: Vec<&str> = options.iter().chain(window).copied().collect();
            let protected = Disk::serve(pmbd, memory.path(), SIZE_BYTES, &options)?;
            let accesses = if cli.quick { &[Access::Write][..] } else { &[Access::Write, Access::Read] };
            for access in accesses {
                for ((kib, depth), goal) in [(4, 1), (4, 16), (256, 1), (256, 16)].into_iter().zip(goals) {
                    let job = Job { kib, is_sequential: method == BATCHED, ..Job::new(*access, depth) };
                    eprintln!("NBD, {method}, {}, {job}", memory.name());
                    let [pairs] = rounds(round_count, |side| {
                        let disk = if side == Side::Ours { &protected } else { &plain };
                        Ok([job.done(&disk.fio(job.arguments(SIZE_BYTES, runtime))?)?.iops])
                    })?;
                    let has_goal = memory.has_huge_pages && *access == Access::Write;
                    let name = format!("NBD {method}, {}: {job}", memory.name());
                    report.row(name, "none", "io/s", pairs, has_goal.then_some(goal));
                }
            }
        }
    }
    Ok(())
}
