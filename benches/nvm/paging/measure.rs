//! Measures how many updates a second a program makes whose array does not fit into its memory, and what a fault costs.

use super::group;
use super::thrash::{self, Ran};
use crate::client::{self, Counts, Runs};
use crate::latency::{self, Floors};
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_bench::nvm::cell::{Cell, Point, Spread};
use pm_bench::nvm::device::{Device, Kind};
use pm_bench::nvm::figures::{self, PAGE_BYTES};
use pm_bench::nvm::journal::{Journal, Left};
use pm_bench::nvm::spin::{Delay, Delays};
use pm_bench::nvm::technology::Technology;
use pm_bench::{Conversation, Pair, Report, median};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use xtask::process;

pub(crate) const PATH: &str = "swap on zram";
const SWAP_BYTES: u64 = 1 << 30;
/// The memory of the program.
const MEMORY_BYTES: u64 = 64 << 20;
/// The same in MiB.
pub(crate) const MEMORY_MIB: f64 = 64.0;
const _: () = assert!(MEMORY_BYTES == 64 << 20);
/// As in the paper.
const THREADS: usize = 16;
/// The kernel now and then kills a program whose pages it cannot write in time.
const ATTEMPTS: usize = 5;
const GOAL: f64 = 0.95;

/// What is measured with one array and one technology.
#[derive(Debug, Default)]
struct Measured {
    /// Updates a second of 16 threads.
    updates: Vec<f64>,
    /// Microseconds for which one thread's processor waits for a page.
    fault_us: Vec<f64>,
    /// What that should be, from the requests that were counted.
    predicted_us: Vec<f64>,
}

/// Measures Fig. 9 of these technologies.
pub(crate) fn measure(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let mark = journal.entries().len();
    let zram = Zram::add(journal, SWAP_BYTES)?;
    let floors = latency::floors(&zram, runs, &mut Vec::new())?;
    process::output(Command::new("mkswap").arg(&zram.device))?;
    journal.add(Left::Swap(zram.device.clone())).into_diagnostic()?;
    process::output(Command::new("swapon").args(["--priority", "32767"]).arg(&zram.device))?;
    let group = group::add(journal, MEMORY_BYTES)?;
    let mut points = Vec::new();
    let mut killed = 0;
    for halves in figures::PAGING_HALVES {
        let bytes = MEMORY_BYTES / 2 * halves;
        eprintln!("{PATH}, {} MiB with {} MiB of memory", bytes >> 20, MEMORY_BYTES >> 20);
        let in_memory = repeat(&mut killed, || in_memory(bytes, runs))?;
        points.push(updates(&figures::paging("dram", halves), Cell::Measured(Spread::of(&in_memory))));
        let measured = repeat(&mut killed, || paged(&zram, &group, bytes, technologies, floors, runs))?;
        let mut measured = measured.into_iter();
        let alone = measured.next().ok_or_else(|| miette!("nothing was measured"))?;
        points
            .push(updates(&figures::paging("no-delay", halves), Cell::Measured(Spread::of(&alone.updates))));
        let is_largest = Some(&halves) == figures::PAGING_HALVES.last();
        if is_largest {
            points.push(fault("no-delay", None, Cell::Measured(Spread::of(&alone.fault_us))));
        }
        for (technology, measured) in technologies.iter().zip(measured) {
            let name = figures::paging(&technology.name, halves);
            if delays(technology, floors, 0).is_none() {
                let why =
                    || Cell::Not("a fault would spin for longer than a thread may in the kernel".into());
                points.push(updates(&name, why()));
                if is_largest {
                    points.push(fault(&technology.name, None, why()));
                }
                continue;
            }
            points.push(updates(&name, Cell::Measured(Spread::of(&measured.updates))));
            if is_largest {
                points.push(faults(report, technology, &measured));
            }
        }
    }
    report.fact("programs that the kernel killed while they paged, and that were run again", killed);
    journal.undo_to(mark).into_diagnostic()?;
    Ok(points)
}

/// The updates a second of 16 threads whose array is in memory.
fn in_memory(bytes: u64, runs: Runs) -> Result<Vec<f64>> {
    let mut thrash = thrash::start(bytes, None)?;
    let mut updates = Vec::new();
    for _ in 0..runs.count {
        let ran = thrash::run(&mut thrash, THREADS, runs.time)?;
        updates.push(ran.updates / ran.seconds);
    }
    thrash.finish()?;
    Ok(updates)
}

/// Measures an array that is paged: without delay, and with that of each technology, in rounds.
fn paged(
    zram: &Zram,
    group: &Path,
    bytes: u64,
    technologies: &[&Technology],
    floors: Floors,
    runs: Runs,
) -> Result<Vec<Measured>> {
    let mut thrash = thrash::start(bytes, Some(group))?;
    let mut measured: Vec<Measured> =
        std::iter::repeat_with(Measured::default).take(technologies.len() + 1).collect();
    for _ in 0..runs.count {
        let alone = waited(zram, &mut thrash, runs.time)?;
        let own_us = alone.0.busy * 1e6 / alone.0.faults;
        measured[0].fault_us.push(own_us);
        let ran = thrash::run(&mut thrash, THREADS, runs.time)?;
        measured[0].updates.push(ran.updates / ran.seconds);
        for (technology, measured) in technologies.iter().zip(&mut measured[1..]) {
            if delays(technology, floors, 0).is_none() {
                continue;
            }
            let attached =
                zram.delay(|device| delays(technology, floors, device).unwrap_or_else(|| none(device)))?;
            let spins = delays(technology, floors, 0).unwrap_or_else(|| none(0));
            let (ran, counts) = waited(zram, &mut thrash, runs.time)?;
            let spun_us = (counts.reads * f64::from(spins.read.base_ns)
                + counts.writes * f64::from(spins.write.base_ns))
                / 1e3;
            measured.fault_us.push(ran.busy * 1e6 / ran.faults);
            measured.predicted_us.push(own_us + spun_us / ran.faults);
            let ran = thrash::run(&mut thrash, THREADS, runs.time)?;
            measured.updates.push(ran.updates / ran.seconds);
            drop(attached);
        }
    }
    thrash.finish()?;
    Ok(measured)
}

/// Lets one thread update words. Returns what it has done, and the reads and writes of the swap device.
fn waited(zram: &Zram, thrash: &mut Conversation, time: Duration) -> Result<(Ran, Counts)> {
    let before = client::counts(&zram.device)?;
    let ran = thrash::run(thrash, 1, time)?;
    Ok((ran, client::counts(&zram.device)?.since(before)))
}

/// The spins of a technology, with which a page takes as long as asked for. None, if it would be too long.
fn delays(technology: &Technology, floors: Floors, device: u32) -> Option<Delays> {
    let spin = |kind| {
        let asked = Device::latency_ns(technology, kind, PAGE_BYTES);
        let floor = Duration::from_secs_f64(floors.of(kind) / 1e6).as_nanos();
        let ns = asked.saturating_sub(u64::try_from(floor).unwrap_or(u64::MAX));
        u32::try_from(ns).ok().filter(|ns| Delays::can_be(u64::from(*ns)))
    };
    let (read, write) = (spin(Kind::Read)?, spin(Kind::Write)?);
    let delay = |base_ns| Delay { base_ns, kib_ns: 0 };
    Some(Delays { device, read: delay(read), write: delay(write), longest_ns: read.max(write).into() })
}

fn none(device: u32) -> Delays {
    Delays { device, read: Delay::default(), write: Delay::default(), longest_ns: 0 }
}

fn updates(name: &str, cell: Cell) -> Point {
    Point { name: name.to_owned(), path: PATH, unit: "1/s", asked: None, floor: None, cell }
}

fn fault(technology: &str, asked: Option<f64>, cell: Cell) -> Point {
    Point { name: figures::fault(technology), path: PATH, unit: "us", asked, floor: None, cell }
}

/// The cost of a fault, and a row with what it should be.
fn faults(report: &mut Report, technology: &Technology, measured: &Measured) -> Point {
    let pairs = measured.fault_us.iter().zip(&measured.predicted_us);
    let accuracy = |(got, asked): (&f64, &f64)| Pair { ours: 1.0 - (got / asked - 1.0).abs(), theirs: 1.0 };
    let asked = median(measured.predicted_us.iter().copied());
    let spread = Spread::of(&measured.fault_us);
    let label = format!("{}: {:.1} us", figures::fault(&technology.name), spread.median);
    report.row(label, format!("{asked:.1} us"), "", pairs.map(accuracy).collect(), Some(GOAL));
    fault(&technology.name, Some(asked), Cell::Measured(spread))
}

/// Tries again what the kernel has killed.
fn repeat<T>(killed: &mut usize, mut act: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match act() {
            Err(error) if error.to_string().contains("signal: 9") => *killed += 1,
            done => return done,
        }
    }
    act().wrap_err_with(|| format!("{ATTEMPTS} times in turn"))
}
