//! Emulated memories: how exactly accesses take the time that was asked for, and what slow memories do to a block device's clients.

mod clients;

use clap::Parser;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Cli, Pair, Report};
use pm_core::emulation::{Emulated, EmulationError, Preset, SimulatedInstant, Speed};
use pm_core::{Pmem, Region};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use xtask::pmbd;

/// The lines of a round.
const ROUND_LINES: u64 = 10_000;
/// The longest time of a round, of accesses that take long.
const ROUND_TIME: Duration = Duration::from_millis(250);
/// Machines with DRAM write single lines one after the other in some 130 ns. Faster memories are measured with long writes only.
const WRITES_OF_LINES: Duration = Duration::from_nanos(200);
/// In the caches, so that the machine's own accesses are faster than the emulated ones.
const REGION_BYTES: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Emulated against asked-for speeds, and the clients of a block device on a slow memory.
#[derive(Debug, Parser)]
#[command(name = "emulate", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Do not measure clients of a block device.
    #[arg(long)]
    no_clients: bool,
    /// The pmbd to measure [default: built from this repository].
    #[arg(long, value_name = "FILE")]
    pmbd: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let rounds = options.cli.round_count(25, 5);
    let mut report = Report::new("emulate");
    report.fact("round_lines", ROUND_LINES);
    report.fact("rounds", rounds);
    for ns in [60, 85, 100, 200, 300, 500, 1000] {
        let latency = Duration::from_nanos(ns);
        let speed = Speed::new().read_latency(latency).write_latency(latency);
        let row = |access: &str| format!("{access} at {ns} ns a line");
        measure(&mut report, rounds, &row("load of a line"), speed, Access::Load(64), latency)?;
        measure(&mut report, rounds, &row("load of 4 KiB"), speed, Access::Load(PAGE), 64 * latency)?;
        if latency >= WRITES_OF_LINES {
            measure(&mut report, rounds, &row("store_nt of a line"), speed, Access::StoreNt(64), latency)?;
            measure(&mut report, rounds, &row("flush of a line"), speed, Access::Flush(64), latency)?;
        }
        measure(&mut report, rounds, &row("store_nt of 4 KiB"), speed, Access::StoreNt(PAGE), 64 * latency)?;
        measure(&mut report, rounds, &row("flush of 4 KiB"), speed, Access::Flush(PAGE), 64 * latency)?;
    }
    for (name, megabytes) in [("0.5", 500), ("1", 1000), ("2", 2000), ("5", 5000), ("10", 10_000)] {
        let speed = Speed::new().read_bandwidth(megabytes * 1_000_000).write_bandwidth(megabytes * 1_000_000);
        let page = Duration::from_secs_f64(PAGE as f64 / (megabytes as f64 * 1e6));
        let row = |access: &str| format!("{access} of 4 KiB at {name} GB/s");
        measure(&mut report, rounds, &row("load"), speed, Access::Load(PAGE), page)?;
        measure(&mut report, rounds, &row("store_nt"), speed, Access::StoreNt(PAGE), page)?;
    }
    for preset in Preset::ALL {
        let speed = preset.speed();
        // What the model says, in simulated time.
        let asked = |access: Access| {
            let simulated = Emulated::new(region()?, &speed.simulated(true)).into_diagnostic()?;
            let begin = SimulatedInstant::now();
            let mut bytes = [0; PAGE];
            (0..1000).for_each(|at| access.run(&simulated, at, &mut bytes));
            Ok::<_, miette::Report>(begin.elapsed() / 1000)
        };
        for access in [Access::Load(PAGE), Access::StoreNt(PAGE)] {
            let row = format!("{preset}: {} of 4 KiB", access.name());
            measure(&mut report, rounds, &row, speed, access, asked(access)?)?;
        }
    }
    if !options.no_clients {
        let pmbd = match &options.pmbd {
            Some(path) => path.clone(),
            None => pmbd::build(&["--release"])?,
        };
        clients::measure(&options.cli, &pmbd, &mut report)?;
    }
    options.cli.finish(&report)
}

fn region() -> Result<Region> {
    let region = Region::anonymous(REGION_BYTES).into_diagnostic()?;
    region.populate(0, REGION_BYTES);
    Ok(region)
}

/// An access to a number of bytes, or to a line.
#[derive(Clone, Copy, Debug)]
enum Access {
    Load(usize),
    StoreNt(usize),
    Flush(usize),
}

impl Access {
    const fn name(self) -> &'static str {
        match self {
            Self::Load(_) => "load",
            Self::StoreNt(_) => "store_nt",
            Self::Flush(_) => "flush",
        }
    }

    /// The access with this number.
    fn run(self, pmem: &impl Pmem, number: u64, bytes: &mut [u8; PAGE]) {
        let offset = |len: usize| number * len as u64 % REGION_BYTES;
        match self {
            Self::Load(len) => pmem.load(offset(len), &mut bytes[..len]),
            Self::StoreNt(len) => pmem.store_nt(offset(len), &bytes[..len]),
            Self::Flush(len) => pmem.flush(offset(len), len as u64),
        }
    }
}

/// Adds a row: the accuracy is 1 without an error, and 0.98 if accesses take 2 % too long or too short.
fn measure(
    report: &mut Report,
    rounds: usize,
    name: &str,
    speed: Speed,
    access: Access,
    asked: Duration,
) -> Result<()> {
    let emulated = match Emulated::new(region()?, &speed) {
        Err(error @ EmulationError::TooFast { .. }) => {
            report.fact(&format!("refused: {name}"), error.to_string());
            return Ok(());
        }
        other => other.into_diagnostic()?,
    };
    let count = ROUND_TIME.as_nanos() / asked.as_nanos().max(1);
    let count = u64::try_from(count).into_diagnostic()?.clamp(10, ROUND_LINES);
    let mut bytes = [0; PAGE];
    let round = |_| {
        let begin = Instant::now();
        (0..count).for_each(|at| access.run(&emulated, at, &mut bytes));
        let took = begin.elapsed().as_secs_f64() / count as f64;
        let error = (took / asked.as_secs_f64() - 1.0).abs();
        (took, Pair { ours: 1.0 - error, theirs: 1.0 })
    };
    let (times, pairs): (Vec<f64>, Vec<Pair>) = (0..rounds).map(round).unzip();
    let took = Duration::from_secs_f64(pm_bench::median(times));
    report.row(format!("{name}: {took:.3?}"), format!("{asked:.1?}"), "", pairs, Some(0.98));
    Ok(())
}
