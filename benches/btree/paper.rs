//! Inserts and lookups of 8-byte keys with values of 256 bytes and 4 KiB, as in Fig. 10 of NVMalloc (TRIOS 2013): a tree with sorted nodes whose stores are never,
//! always or around the cache made durable, and ours, each insert durable and in groups.

use crate::sorted_tree::{Persist, SortedTree};
use miette::{IntoDiagnostic as _, Result, ensure};
use pm_bench::{Pair, Report, rounds_of};
use pm_btree::{Store, StoreOptions};
use pm_core::counters::{CounterOptions, LineCounters};
use pm_core::{FenceError, Pmem, Region, RegionOptions};
use std::path::Path;
use std::time::Instant;

/// The rows: the first one is what the others are compared with.
const ROWS: [&str; 7] = [
    "each insert durable",
    "groups of 64",
    "groups of 1,024",
    "sorted nodes, never durable",
    "sorted nodes, flushed",
    "sorted nodes, around the cache",
    "sorted nodes, counters, 64 groups together",
];

/// What is measured, in operations a second.
const WORKLOADS: [&str; 3] = ["insert", "update", "get"];

/// The least rate of groups of 64, to each insert durable.
const GOAL: f64 = 1.2;

/// Measures `count` operations of each kind in this many rounds, and adds rows.
pub(crate) fn add(report: &mut Report, directory: &Path, count: u64, rounds: usize) -> Result<()> {
    report.fact("operations of each kind", count);
    for value_bytes in [256, 4096] {
        let measured: Vec<[[f64; WORKLOADS.len()]; ROWS.len()]> = rounds_of(rounds, |row| {
            eprintln!("{value_bytes} B, {}", ROWS[row]);
            let value = vec![7; value_bytes];
            match row {
                0 => ours(directory, &value, count, None),
                1 => ours(directory, &value, count, Some(64)),
                2 => ours(directory, &value, count, Some(1024)),
                3 => {
                    sorted(region(directory, value_bytes, count)?, &value, count, Persist::Never, |_| Ok(()))
                }
                4 => sorted(
                    region(directory, value_bytes, count)?,
                    &value,
                    count,
                    Persist::Flush,
                    Region::fence,
                ),
                5 => sorted(
                    region(directory, value_bytes, count)?,
                    &value,
                    count,
                    Persist::NonTemporal,
                    Region::fence,
                ),
                _ => {
                    let counters =
                        LineCounters::new(region(directory, value_bytes, count)?, &CounterOptions::new());
                    sorted(counters, &value, count, Persist::Never, |counters| counters.sgroup().map(drop))
                }
            }
        })?;
        for (row, name) in ROWS.into_iter().enumerate().skip(1) {
            for (workload, what) in WORKLOADS.into_iter().enumerate() {
                let pair = |round: &[[f64; WORKLOADS.len()]; ROWS.len()]| Pair {
                    ours: round[row][workload],
                    theirs: round[0][workload],
                };
                let has_goal = row == 1 && workload < 2 && value_bytes == 256;
                let pairs = measured.iter().map(pair).collect();
                report.row(
                    format!("{what}, {value_bytes} B, {name}"),
                    ROWS[0],
                    "op/s",
                    pairs,
                    has_goal.then_some(GOAL),
                );
            }
        }
    }
    Ok(())
}

/// A new region whose pages are all there.
fn region(directory: &Path, value_bytes: usize, count: u64) -> Result<Region> {
    let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
    // Updates take new records in the tree that uses no memory again.
    let len_bytes = ((64 << 20) + (value_bytes as u64 + 160) * count * 5 / 2).next_multiple_of(2 << 20);
    // The file stays until it is unmapped.
    let region = RegionOptions::new().create(directory.path().join("region"), len_bytes).into_diagnostic()?;
    region.populate(0, len_bytes);
    Ok(region)
}

/// Runs each workload with the same keys in the same order. `change` inserts or replaces, and is told of the last key; `get` says whether there is the value.
fn run(
    count: u64,
    mut change: impl FnMut(u64, bool) -> Result<()>,
    mut get: impl FnMut(u64) -> Result<bool>,
) -> Result<[f64; WORKLOADS.len()]> {
    let rate = |operation: &mut dyn FnMut(u64, bool) -> Result<()>| {
        let mut random = fastrand::Rng::with_seed(7);
        let begin = Instant::now();
        (1..=count).try_for_each(|number| operation(random.u64(..), number == count))?;
        Ok::<_, miette::Report>(count as f64 / begin.elapsed().as_secs_f64())
    };
    let insert = rate(&mut change)?;
    let update = rate(&mut change)?;
    let get = rate(&mut |key, _| {
        ensure!(get(key)?, "no value of {key:#x}");
        Ok(())
    })?;
    Ok([insert, update, get])
}

fn ours(directory: &Path, value: &[u8], count: u64, group: Option<u32>) -> Result<[f64; WORKLOADS.len()]> {
    let region = region(directory, value.len(), count)?;
    let options = StoreOptions::new().group_commits(group.unwrap_or(0));
    let store = Store::format(region, &options).into_diagnostic()?;
    let table = store.table::<u64, &[u8]>("records").into_diagnostic()?;
    run(
        count,
        |key, is_last| {
            table.insert_grouped(key, value).into_diagnostic()?;
            if is_last { store.sync().into_diagnostic() } else { Ok(()) }
        },
        |key| Ok(table.get_with(key, |found| found == value).into_diagnostic()? == Some(true)),
    )
}

fn sorted<P: Pmem>(
    pmem: P,
    value: &[u8],
    count: u64,
    persist: Persist,
    end: fn(&P) -> Result<(), FenceError>,
) -> Result<[f64; WORKLOADS.len()]> {
    let tree = std::cell::RefCell::new(SortedTree::new(&pmem, persist, end));
    let mut found = vec![0; value.len()];
    run(
        count,
        |key, _| tree.borrow_mut().insert(key, value).into_diagnostic(),
        |key| {
            let Some((offset, len_bytes)) = tree.borrow().get(key) else { return Ok(false) };
            pmem.load(offset, &mut found);
            Ok(len_bytes == value.len() as u64 && found == value)
        },
    )
}
