//! Replicated stores: `pm store serve` against etcd. Three processes on loopback each, and clients of which each sends one request at a time.
//! `docs/benchmarks.md` explains the table.

mod cluster;
mod etcd;
mod grpc;
mod load;
mod ours;

use clap::{Parser, ValueEnum};
use cluster::{Cluster, Kind};
use load::{Load, Measured, OPERATIONS, Operation};
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::{Cli, Pair, Report, median, rounds_of};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The numbers of clients.
const CLIENTS: [usize; 3] = [1, 16, 64];

/// The least ratios of three nodes in memory to those of Debian's etcd, for each number of clients.
const GOALS: [(Operation, [f64; CLIENTS.len()]); OPERATIONS.len()] =
    [(Operation::Put, [3.0, 4.0, 4.5]), (Operation::Read, [4.0, 5.0, 6.0])];

/// What one cluster has done in one round.
type Round = [[Measured; CLIENTS.len()]; OPERATIONS.len()];

/// Puts and linearizable reads of replicated stores.
#[derive(Debug, Parser)]
#[command(name = "replicated", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Measure only a part.
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
    /// The number of keys, which are all set before anything is measured [default: 50,000, and 5,000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: Option<u64>,
    /// The length of each value.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    value_bytes: u16,
    /// The time of one operation with one number of clients in one round, in milliseconds [default: 2000, and 500 with --quick].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..))]
    time: Option<u64>,
    /// The directory on a disk [default: that of the reports].
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// The pm to measure [default: built from this repository].
    #[arg(long, value_name = "FILE")]
    pm: Option<PathBuf>,
}

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Three nodes with files in memory.
    Memory,
    /// One node with a file in memory.
    OneNode,
    /// Three nodes with files on a disk.
    Disk,
}

/// What is compared in a part.
struct Comparison<'c> {
    name: &'static str,
    directory: &'c Path,
    nodes: usize,
    kinds: [Option<&'c Kind>; 3],
    rounds: usize,
    has_goals: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let (cli, quick) = (&options.cli, options.cli.quick);
    let mut report = Report::new("replicated");
    let pm = match &options.pm {
        Some(path) => path.clone(),
        None => xtask::cargo::build("pm-cli", &["--release"], "pm")?,
    };
    let debian = etcd::Program::of_debian()?;
    report.fact("etcd of Debian", debian.version());
    let newer = match etcd::Program::of_go(&absolute(cli.out())?) {
        Ok(program) => {
            report.fact("etcd built with Go", program.version());
            Some(Kind::Etcd(program))
        }
        Err(reason) => {
            eprintln!("{reason:?}");
            let reason = reason.to_string();
            report.fact(
                "etcd built with Go",
                format!("left out: {}", reason.lines().next().unwrap_or_default()),
            );
            None
        }
    };
    let (ours, debian) = (Kind::Ours(pm), Kind::Etcd(debian));
    let load = Load {
        keys: options.keys.unwrap_or(if quick { 5000 } else { 50_000 }),
        value_bytes: options.value_bytes.into(),
        time: Duration::from_millis(options.time.unwrap_or(if quick { 500 } else { 2000 })),
    };
    report.fact("keys", load.keys);
    report.fact("value bytes", options.value_bytes);
    report.fact("connected to", "the leader, by each client");
    report.fact("etcd also", "keeps all versions of a key, with their revisions; pm keeps the last value");
    report.fact("fsync", "on, for all; in /dev/shm etcd's is a call that writes nothing");

    let disk = options.disk.as_deref().unwrap_or(cli.out());
    std::fs::create_dir_all(disk).into_diagnostic().wrap_err_with(|| disk.display().to_string())?;
    let memory = Path::new("/dev/shm");
    let comparison = |name, directory, nodes, newer, rounds, has_goals| Comparison {
        name,
        directory,
        nodes,
        kinds: [Some(&ours), Some(&debian), newer],
        rounds,
        has_goals,
    };
    let (rounds, fewer) = (cli.round_count(5, 2), cli.round_count(3, 1));
    let includes = |part| options.only.is_none_or(|only| only == part);
    if includes(Part::Memory) {
        comparison("three nodes", memory, 3, newer.as_ref(), rounds, true).add(&mut report, load)?;
    }
    if includes(Part::OneNode) {
        comparison("one node", memory, 1, None, fewer, false).add(&mut report, load)?;
    }
    if includes(Part::Disk) {
        report.fact("disk", disk.to_string_lossy());
        // A busy disk may take longer than an election: what was measured before is not lost.
        if let Err(error) = comparison("on a disk", disk, 3, None, fewer, false).add(&mut report, load) {
            eprintln!("{error:?}");
            report.fact("on a disk", format!("not measured: {}", error.root_cause()));
        }
    }
    cli.finish(&report)
}

impl Comparison<'_> {
    /// Measures, and adds rows to `report`.
    fn add(&self, report: &mut Report, load: Load) -> Result<()> {
        let measured: Vec<[Option<Round>; 3]> = rounds_of(self.rounds, |index| {
            let Some(kind) = self.kinds[index] else { return Ok(None) };
            eprintln!("{}: {}", self.name, kind.name());
            self.round(kind, load).map(Some).wrap_err_with(|| kind.name())
        })?;
        let rounds_of_kind =
            |index: usize| -> Vec<Round> { measured.iter().filter_map(|round| round[index]).collect() };
        let ours = rounds_of_kind(0);
        for (operation, goals) in GOALS {
            for (index, kind) in self.kinds.iter().enumerate() {
                let Some(kind) = kind else { continue };
                let rounds = rounds_of_kind(index);
                let name = format!("{}, {}, {}", self.name, operation.name(), kind.name());
                report.fact(&name, figures(&rounds, operation));
            }
            for (index, rival) in self.kinds.iter().enumerate().skip(1) {
                let Some(rival) = rival else { continue };
                let theirs = rounds_of_kind(index);
                for (place, clients) in CLIENTS.into_iter().enumerate() {
                    let rate = |round: &Round| round[operation.index()][place].rate;
                    let pairs = ours.iter().zip(&theirs);
                    let pairs = pairs.map(|(ours, theirs)| Pair { ours: rate(ours), theirs: rate(theirs) });
                    let goal = (self.has_goals && index == 1).then_some(goals[place]);
                    let name = format!("{}, {}, {}", self.name, operation.name(), count(clients));
                    report.row(name, rival.name(), "op/s", pairs.collect(), goal);
                }
            }
        }
        Ok(())
    }

    /// Measures a new cluster.
    fn round(&self, kind: &Kind, load: Load) -> Result<Round> {
        let directory = tempfile::tempdir_in(self.directory).into_diagnostic()?;
        let cluster = Cluster::start(kind, directory.path(), self.nodes)?;
        cluster.fill(load)?;
        let mut round = [[Measured::default(); CLIENTS.len()]; OPERATIONS.len()];
        for (place, clients) in CLIENTS.into_iter().enumerate() {
            for operation in OPERATIONS {
                round[operation.index()][place] = cluster.measure(operation, clients, load)?;
            }
        }
        Ok(round)
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).into_diagnostic()
}

fn count(clients: usize) -> String {
    if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") }
}

/// The medians of latencies and of processor times of all rounds.
fn figures(rounds: &[Round], operation: Operation) -> String {
    let texts = CLIENTS.into_iter().enumerate().map(|(place, clients)| {
        let of = |value: fn(&Measured) -> f64| {
            median(rounds.iter().map(|round| value(&round[operation.index()][place])))
        };
        let [p50, p99] = [of(|measured| measured.p50_us), of(|measured| measured.p99_us)];
        let [nodes, load] = [of(|measured| measured.nodes_us), of(|measured| measured.load_us)];
        format!(
            "{}: p50 {p50:.0} us, p99 {p99:.0} us, processor time {nodes:.0} + {load:.0} us",
            count(clients)
        )
    });
    texts.collect::<Vec<_>>().join("; ")
}
