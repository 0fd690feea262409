//! Figs 5 and 6: the latency of single random accesses, with and without a file system.

use crate::client::{self, Runs};
use crate::files;
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::nvm::cell::{Cell, Point, Spread};
use pm_bench::nvm::device::{Device, Kind};
use pm_bench::nvm::figures::{self, LatencyCell, Layer, PAGE_BYTES};
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::spin::{Delay, Delays};
use pm_bench::nvm::technology::Technology;
use pm_bench::{Pair, Report, median};
use std::path::Path;
use std::time::Duration;

pub(crate) const PATH: &str = "zram";
const DEVICE_BYTES: u64 = 1 << 30;
/// A delivered median within 5 % of what was asked for.
const GOAL: f64 = 0.95;

/// The latencies of the path itself in microseconds, the program included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floors {
    read: f64,
    write: f64,
}

/// Whether a thread may spin for as long as a page of this technology takes.
pub(crate) fn can_spin(technology: &Technology) -> bool {
    let latency = |kind| Device::latency_ns(technology, kind, PAGE_BYTES);
    Delays::can_be(latency(Kind::Read)) && Delays::can_be(latency(Kind::Write))
}

/// Measures the cells, and adds rows of asked against delivered to the report.
pub(crate) fn measure(
    journal: &mut Journal,
    cells: &[LatencyCell],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let mark = journal.entries().len();
    let zram = Zram::add(journal, DEVICE_BYTES)?;
    client::fill(&zram.device)?;
    let mut points = Vec::new();
    for kind in [Kind::Read, Kind::Write] {
        without_delay(&zram.device, figures::no_delay(Layer::Raw, kind), kind, runs, &mut points)?;
    }
    let floors = floors(&zram, runs, &mut points)?;
    for layer in [Layer::Raw, Layer::Xfs, Layer::Ext4] {
        let of_layer: Vec<&LatencyCell> = cells.iter().filter(|cell| cell.layer == layer).collect();
        if of_layer.is_empty() {
            continue;
        }
        eprintln!("latency, {layer}: {} cells", of_layer.len());
        let mounted = journal.entries().len();
        let target = if layer == Layer::Raw {
            zram.device.clone()
        } else {
            files::make(layer, &zram.device)?;
            let file = files::mount(journal, layer, &zram.device)?.join("file");
            client::fill(&file)?;
            for kind in [Kind::Read, Kind::Write] {
                without_delay(&file, figures::no_delay(layer, kind), kind, runs, &mut points)?;
            }
            file
        };
        points.extend(of_layer_measured(&zram, &target, &of_layer, floors, runs, report)?);
        journal.undo_to(mounted).into_diagnostic()?;
    }
    journal.undo_to(mark).into_diagnostic()?;
    Ok(points)
}

/// Measures cells that have one target in rounds, so that a disturbance hits all of them alike.
fn of_layer_measured(
    zram: &Zram,
    target: &Path,
    cells: &[&LatencyCell],
    floors: Floors,
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); cells.len()];
    for round in 0..runs.count {
        for turn in 0..cells.len() {
            let index = if round % 2 == 0 { turn } else { cells.len() - 1 - turn };
            let cell = cells[index];
            if let Some(spin_ns) = spin_ns(cell, floors) {
                let delay = Delay { base_ns: spin_ns, kib_ns: 0 };
                let attached = zram.delay(|device| Delays {
                    device,
                    read: if cell.kind == Kind::Read { delay } else { Delay::default() },
                    write: if cell.kind == Kind::Write { delay } else { Delay::default() },
                    longest_ns: spin_ns.into(),
                })?;
                measured[index].push(client::latency_us(target, cell.kind, runs.time)?);
                drop(attached);
            }
        }
    }
    let mut points = Vec::new();
    for (cell, runs) in cells.iter().zip(measured) {
        let asked = cell.asked_ns() as f64 / 1e3;
        let floor = floors.of(cell.kind);
        let is_raw = cell.layer == Layer::Raw;
        if is_raw && !runs.is_empty() {
            let accuracy = |got: &f64| Pair { ours: 1.0 - (got / asked - 1.0).abs(), theirs: 1.0 };
            let pairs = runs.iter().map(accuracy).collect();
            let label = format!("{}: {:.1} us", cell.name, median(runs.iter().copied()));
            report.row(label, format!("{asked:.1} us"), "", pairs, Some(GOAL));
        }
        let result = if !runs.is_empty() {
            Cell::Measured(Spread::of(&runs))
        } else if asked <= floor {
            Cell::Floor
        } else {
            Cell::Not(format!("{asked:.0} us is more than a thread may spin in the kernel"))
        };
        points.push(Point {
            name: cell.name.clone(),
            path: PATH,
            unit: "us",
            asked: is_raw.then_some(asked),
            floor: Some(floor),
            cell: result,
        });
    }
    Ok(points)
}

impl Floors {
    pub(crate) const fn of(self, kind: Kind) -> f64 {
        match kind {
            Kind::Read => self.read,
            Kind::Write | Kind::Flush => self.write,
        }
    }
}

/// The time to spin before each request, so that it takes as long as asked: none if the path takes longer, or the thread would spin too long.
fn spin_ns(cell: &LatencyCell, floors: Floors) -> Option<u32> {
    let spin = cell.asked_ns() as f64 - floors.of(cell.kind) * 1e3;
    let ns = if spin > 0.0 { Duration::from_secs_f64(spin / 1e9).as_nanos() } else { return None };
    u32::try_from(ns).ok().filter(|ns| Delays::can_be(u64::from(*ns)))
}

/// Measures the device with the program attached, whose shortest delay is a nanosecond: what no technology can be faster than.
pub(crate) fn floors(zram: &Zram, runs: Runs, points: &mut Vec<Point>) -> Result<Floors> {
    let least = Delay { base_ns: 1, kib_ns: 0 };
    let attached = zram.delay(|device| Delays { device, read: least, write: least, longest_ns: 1 })?;
    let mut floor = |kind| without_delay(&zram.device, format!("fig5/floor/raw/{kind}"), kind, runs, points);
    let floors = Floors { read: floor(Kind::Read)?, write: floor(Kind::Write)? };
    drop(attached);
    Ok(floors)
}

/// Measures a target as it is.
fn without_delay(
    target: &Path,
    name: String,
    kind: Kind,
    runs: Runs,
    points: &mut Vec<Point>,
) -> Result<f64> {
    let medians: Result<Vec<f64>> =
        (0..runs.count).map(|_| client::latency_us(target, kind, runs.time)).collect();
    let spread = Spread::of(&medians?);
    points.push(Point {
        name,
        path: PATH,
        unit: "us",
        asked: None,
        floor: None,
        cell: Cell::Measured(spread),
    });
    Ok(spread.median)
}
