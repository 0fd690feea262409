//! Measures how many updates a second a program makes whose array does not fit into its memory, and what a fault costs.

use super::group;
use super::program::Program;
use super::thrash::{self, Ran};
use crate::client::{self, Runs};
use crate::latency::{self, Floors};
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result, miette};
use pm_bench::nvm::cell::{Cell, Point, Spread};
use pm_bench::nvm::device::{Counts, Device, Kind};
use pm_bench::nvm::figures::{self, PAGE_BYTES};
use pm_bench::nvm::journal::{Journal, Left};
use pm_bench::nvm::spin::{Delay, Delays};
use pm_bench::nvm::technology::Technology;
use pm_bench::{Conversation, Pair, Report, median};
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
const GOAL: f64 = 0.95;

/// A swap device.
pub(super) struct Swap {
    pub(super) zram: Zram,
    pub(super) floors: Floors,
}

impl Swap {
    /// Makes the kernel page to a device in memory. The journal takes it down.
    pub(super) fn add(journal: &mut Journal, runs: Runs) -> Result<Self> {
        let zram = Zram::add(journal, SWAP_BYTES)?;
        let floors = latency::floors(&zram, runs, &mut Vec::new())?;
        process::output(Command::new("mkswap").arg(&zram.device))?;
        journal.add(Left::Swap(zram.device.clone())).into_diagnostic()?;
        process::output(Command::new("swapon").args(["--priority", "32767"]).arg(&zram.device))?;
        Ok(Self { zram, floors })
    }
}

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
    let swap = Swap::add(journal, runs)?;
    let group = group::add(journal, MEMORY_BYTES)?;
    let mut points = Vec::new();
    let mut killed = 0;
    for halves in figures::PAGING_HALVES {
        let bytes = MEMORY_BYTES / 2 * halves;
        eprintln!("{PATH}, {} MiB with {} MiB of memory", bytes >> 20, MEMORY_BYTES >> 20);
        points.push(updates("dram", halves, &in_memory(bytes, runs)?));
        let mut program = Program::new(|| thrash::start(bytes, Some(&group)), &mut killed);
        let mut measured = paged(&swap, &mut program, technologies, runs)?.into_iter();
        let alone = measured.next().ok_or_else(|| miette!("nothing was measured"))?;
        points.push(updates("no-delay", halves, &alone.updates));
        // The longest array, in which nearly every update is a fault.
        let is_last = Some(&halves) == figures::PAGING_HALVES.last();
        if is_last {
            points.push(fault(report, "no-delay", &alone));
        }
        for (technology, measured) in technologies.iter().zip(measured) {
            points.push(updates(&technology.name, halves, &measured.updates));
            if is_last {
                points.push(fault(report, &technology.name, &measured));
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

/// Measures an array that is paged: without delay, and with that of each technology, in rounds. What the kernel has killed has fewer rounds, or none.
fn paged(
    swap: &Swap,
    program: &mut Program<'_>,
    technologies: &[&Technology],
    runs: Runs,
) -> Result<Vec<Measured>> {
    let Swap { zram, floors } = swap;
    let mut measured: Vec<Measured> =
        std::iter::repeat_with(Measured::default).take(technologies.len() + 1).collect();
    let updated = |thrash: &mut Conversation| {
        let ran = thrash::run(thrash, THREADS, runs.time)?;
        Ok(ran.updates / ran.seconds)
    };
    for _ in 0..runs.count {
        let Some(alone) = program.attempt(|thrash| waited(zram, thrash, runs.time))? else { continue };
        let own_us = fault_us(alone.0);
        measured[0].fault_us.extend(own_us);
        measured[0].updates.extend(program.attempt(updated)?);
        for (technology, measured) in technologies.iter().zip(&mut measured[1..]) {
            let Some(spins) = delays(technology, *floors, 0) else { continue };
            // Filled before, for that is not measured.
            program.attempt(|_| Ok(()))?;
            let attached = zram.delay(|device| Delays { device, ..spins })?;
            if let Some((ran, counts)) = program.attempt(|thrash| waited(zram, thrash, runs.time))? {
                let spun_us = (counts.reads * f64::from(spins.read.base_ns)
                    + counts.writes * f64::from(spins.write.base_ns))
                    / 1e3;
                if let (Some(got), Some(own)) = (fault_us(ran), own_us) {
                    measured.fault_us.push(got);
                    measured.predicted_us.push(own + spun_us / ran.faults);
                }
            }
            measured.updates.extend(program.attempt(updated)?);
            drop(attached);
        }
    }
    program.finish()?;
    Ok(measured)
}

/// The cost of a fault in microseconds. There is none of a run without faults: the array is in memory, or the thread hardly ran.
fn fault_us(ran: Ran) -> Option<f64> {
    (ran.faults > 0.0).then(|| ran.busy * 1e6 / ran.faults)
}

/// Lets one thread update words. Returns what it has done, and the reads and writes of the swap device.
fn waited(zram: &Zram, thrash: &mut Conversation, time: Duration) -> Result<(Ran, Counts)> {
    let before = client::counts(&zram.device)?;
    let ran = thrash::run(thrash, 1, time)?;
    Ok((ran, client::counts(&zram.device)?.since(before)))
}

/// The spins of a technology, with which a page takes as long as asked for. None, if it would be too long.
pub(super) fn delays(technology: &Technology, floors: Floors, device: u32) -> Option<Delays> {
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

/// The cell of these runs.
fn cell(runs: &[f64]) -> Cell {
    if runs.is_empty() {
        // Of a technology for which nothing was tried, or which the kernel did not let run.
        return Cell::Not(
            "a page takes longer than a thread may spin, or the kernel kills the program for lack of memory"
                .into(),
        );
    }
    Cell::Measured(Spread::of(runs))
}

fn updates(technology: &str, halves: u64, runs: &[f64]) -> Point {
    let name = figures::paging(technology, halves);
    Point { name, path: PATH, unit: "1/s", asked: None, floor: None, cell: cell(runs) }
}

/// The cost of a fault, and a row with what it should be.
fn fault(report: &mut Report, technology: &str, measured: &Measured) -> Point {
    let name = figures::fault(technology);
    let mut asked = None;
    if !measured.predicted_us.is_empty() {
        let predicted = median(measured.predicted_us.iter().copied());
        let accuracy =
            |(got, asked): (&f64, &f64)| Pair { ours: 1.0 - (got / asked - 1.0).abs(), theirs: 1.0 };
        let pairs = measured.fault_us.iter().zip(&measured.predicted_us).map(accuracy).collect();
        let label = format!("{name}: {:.1} us", Spread::of(&measured.fault_us).median);
        report.row(label, format!("{predicted:.1} us"), "", pairs, Some(GOAL));
        asked = Some(predicted);
    }
    let cell = match measured.fault_us[..] {
        [] if !measured.updates.is_empty() => Cell::Not("no run of a single thread had a fault".into()),
        _ => cell(&measured.fault_us),
    };
    Point { name, path: PATH, unit: "us", asked, floor: None, cell }
}
