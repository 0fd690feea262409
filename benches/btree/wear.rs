//! The number of writes to each line of a tree, as in Fig. 6 of NVMalloc (TRIOS 2013): 8-byte keys and values, so that only nodes are written.

use crate::sorted_tree::{Persist, SortedTree};
use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Pair, Plot, Report, Series};
use pm_btree::{Store, StoreOptions};
use pm_core::{LineCounting, LineWrites, Region};

/// The least ratio of the sorted nodes' writes to ours.
const GOAL: f64 = 1.3;

/// Counts the writes of `count` random insertions, and adds facts, rows and a chart.
pub(crate) fn add(report: &mut Report, count: u64) -> Result<()> {
    eprintln!("writes to each line");
    let trees = [
        ("ours, each insert durable", ours(count, 0)?),
        ("ours, groups of 64", ours(count, 64)?),
        ("sorted nodes", sorted(count)?),
    ];
    for (name, writes) in &trees {
        let sorted = writes.sorted_writes();
        let at = |share: usize| sorted[(sorted.len() - 1) * share / 1000];
        let fact = format!(
            "{:.2} an insertion, to {} lines; of a line: median {}, 99 % {}, 99.9 % {}, most {}",
            writes.total_writes() as f64 / count as f64,
            writes.line_count(),
            at(500),
            at(990),
            at(999),
            writes.max_writes()
        );
        report.fact(&format!("line writes, {name}"), fact);
    }
    let per_write = |writes: &LineWrites| count as f64 / writes.total_writes() as f64;
    let wear = |writes: &LineWrites| count as f64 / writes.max_writes() as f64;
    let [ours @ .., (_, sorted)] = &trees;
    for (name, writes) in ours {
        let pair = Pair { ours: per_write(writes), theirs: per_write(sorted) };
        report.row(
            format!("insertions a line write, {name}"),
            "sorted nodes",
            "op/w",
            vec![pair],
            Some(GOAL),
        );
        let pair = Pair { ours: wear(writes), theirs: wear(sorted) };
        let row = format!("insertions a write of the most written line, {name}");
        report.row(row, "sorted nodes", "op/w", vec![pair], None);
    }
    let series = trees.iter().map(|(name, writes)| {
        let points = writes.cdf().iter().map(|point| (point.writes as f64, point.fraction)).collect();
        Series { name: (*name).to_owned(), points }
    });
    let plot = Plot {
        title: format!("{count} insertions: lines with at most so many writes"),
        labels: ["writes of a line", "share of the lines"].map(str::to_owned),
        logarithmic: [true, false],
        series: series.collect(),
    };
    report.chart("cdf", &plot);
    Ok(())
}

/// Memory that holds the nodes of both trees.
fn region(count: u64) -> Result<LineCounting<Region>> {
    let region = Region::anonymous((32 << 20) + 96 * count.next_multiple_of(1 << 16)).into_diagnostic()?;
    Ok(LineCounting::new(region))
}

fn keys(count: u64) -> impl Iterator<Item = u64> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..count).map(move |_| random.u64(..))
}

fn ours(count: u64, group: u32) -> Result<LineWrites> {
    let pmem = region(count)?;
    let store = Store::format(&pmem, &StoreOptions::new().group_commits(group)).into_diagnostic()?;
    let table = store.table::<u64, u64>("keys").into_diagnostic()?;
    pmem.reset();
    for key in keys(count) {
        table.insert_grouped(key, !key).into_diagnostic()?;
    }
    store.sync().into_diagnostic()?;
    Ok(pmem.stored())
}

fn sorted(count: u64) -> Result<LineWrites> {
    let pmem = region(count)?;
    let mut tree = SortedTree::new(&pmem, Persist::Never, |_| Ok(()));
    for key in keys(count) {
        tree.insert_word(key, !key).into_diagnostic()?;
    }
    Ok(pmem.stored())
}
