//! Durable ordered stores: single insertions, lookups, scans and removals, against redb, LMDB and fjall. `docs/benchmarks.md` explains the table.

mod batches;
mod btree_map;
mod details;
mod fjall;
mod lmdb;
mod opening;
mod ours;
mod paper;
mod queue;
mod records;
mod redb;
mod sorted_tree;
mod store;
mod wear;
mod workload;

use clap::Parser;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Cli, Pair, Report, median, rounds_of};
use records::Records;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use workload::{NAMES, Percentiles, Rates, Sizes, Workload};

/// Creates an empty store in an empty directory, and runs the workloads on it.
type Measure = fn(&Path, Workload<'_>) -> Result<Rates>;

/// All stores, ours first.
const STORES: [(&str, Measure); 5] = [
    ("ours", ours::measure),
    ("redb", redb::measure),
    ("LMDB", lmdb::measure),
    ("fjall", fjall::measure),
    ("volatile BTreeMap", btree_map::measure),
];

/// The goal of each workload: the rival, and the least ratio.
const GOALS: [(&str, &str, f64); NAMES.len()] = [
    ("get", "LMDB", 2.8),
    ("scan of 100", "LMDB", 3.5),
    ("put of a new key", "fjall", 6.0),
    ("remove", "fjall", 8.0),
];

/// Single operations of durable ordered stores, each durable when it returns.
#[derive(Debug, Parser)]
#[command(name = "btree", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// The number of records that are loaded before anything is measured [default: 1,000,000, and 200,000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    records: Option<u64>,
    /// The length of each value.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u16).range(8..=4096))]
    value_bytes: u16,
    /// The longest time of one workload of one store in one round, in milliseconds [default: 700, and 200 with --quick].
    #[arg(long, value_name = "MS")]
    time: Option<u64>,
    /// The directory of the stores: by default in memory, so that no rival waits for a disk.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    directory: PathBuf,
    /// Measure only a part.
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
}

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The table of all stores.
    Stores,
    /// Threads, lengths of values, string keys, memory.
    Details,
    /// Opening a store after a kill.
    Opening,
    /// Long batches against short ones.
    Batches,
    /// A queue after millions of pops, and space after updates of changing lengths.
    Queue,
    /// A tree with sorted nodes, and groups of changes, after the paper NVMalloc.
    Paper,
}

fn main() -> Result<ExitCode> {
    opening::load_if_asked(&Records::new(256))?;
    let options = Options::parse();
    let quick = options.cli.quick;
    let records = options.records.unwrap_or(if quick { 200_000 } else { 1_000_000 });
    let time = Duration::from_millis(options.time.unwrap_or(if quick { 200 } else { 700 }));
    let sizes = Sizes { records, time };
    let values = Records::new(options.value_bytes.into());

    let mut report = Report::new("btree");
    report.fact("records", records);
    report.fact("value bytes", options.value_bytes);
    report.fact("directory", options.directory.to_string_lossy());
    let includes = |part| options.only.is_none_or(|only| only == part);
    let rounds = options.cli.round_count(5, 2);
    if includes(Part::Stores) {
        compare_stores(&mut report, &options, &values, sizes, rounds)?;
    }
    if includes(Part::Details) {
        details::add(&mut report, &options.directory, &values, sizes, rounds)?;
    }
    if includes(Part::Opening) {
        let killed_records = if quick { 1_000_000 } else { 10_000_000 };
        opening::add(&mut report, &options.directory, &Records::new(256), killed_records, 1 + rounds / 3)?;
    }
    if includes(Part::Batches) {
        batches::add(&mut report, &options.directory, records, rounds)?;
    }
    if includes(Part::Queue) {
        let (pops, updates) = if quick { (300_000, 1_000_000) } else { (3_000_000, 10_000_000) };
        queue::add(&mut report, &options.directory, pops, updates, options.cli.round_count(3, 1))?;
    }
    if includes(Part::Paper) {
        let count = options.records.unwrap_or(if quick { 100_000 } else { 1_000_000 });
        paper::add(&mut report, &options.directory, count, options.cli.round_count(3, 1))?;
        wear::add(&mut report, count)?;
    }
    options.cli.finish(&report)
}

/// Adds the rates of all stores to the report.
fn compare_stores(
    report: &mut Report,
    options: &Options,
    values: &Records,
    sizes: Sizes,
    rounds: usize,
) -> Result<()> {
    let mut agreed = None;
    let measured: Vec<[_; STORES.len()]> = rounds_of(rounds, |index| {
        let (name, measure) = STORES[index];
        eprintln!("{name}");
        let directory = tempfile::tempdir_in(&options.directory).into_diagnostic()?;
        let rates = measure(directory.path(), Workload { records: values, sizes, agreed: &mut agreed });
        rates.map_err(|error| error.wrap_err(format!("{name} failed")))
    })?;

    for (index, (name, _)) in STORES.iter().enumerate() {
        let load = median(measured.iter().map(|round| round[index].load));
        report.fact(&format!("load, {name}"), format!("{load:.0} records/s"));
        let of_store = || measured.iter().map(|round| &round[index]);
        report.fact(&format!("latency of get, {name}"), percentiles(of_store().map(|rates| rates.get_ns)));
        report.fact(&format!("latency of put, {name}"), percentiles(of_store().map(|rates| rates.put_ns)));
    }
    for (workload, name) in NAMES.into_iter().enumerate() {
        for (rival, (rival_name, _)) in STORES.iter().enumerate().skip(1) {
            let pair = |rates: [[f64; NAMES.len()]; 2]| Pair {
                ours: rates[0][workload],
                theirs: rates[1][workload],
            };
            let pairs = measured.iter().map(|round| pair([round[0].rates, round[rival].rates])).collect();
            let goal = GOALS.iter().find(|goal| (goal.0, goal.1) == (name, *rival_name)).map(|goal| goal.2);
            report.row(name, *rival_name, "op/s", pairs, goal);
        }
    }
    Ok(())
}

/// The medians of the percentiles of all rounds.
fn percentiles(rounds: impl Iterator<Item = Percentiles> + Clone) -> String {
    let [p50, p99, p999] = [0, 1, 2].map(|index| median(rounds.clone().map(|round| round[index])));
    format!("p50 {p50:.0} ns, p99 {p99:.0} ns, p99.9 {p999:.0} ns")
}
