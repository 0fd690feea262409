//! What needs many requests in flight, or takes long, on the block device behind FUSE: Fig. 4 with file systems, disks in Fig. 5, flushes.

use crate::client::{self, Runs};
use crate::export::{Export, Lead};
use crate::files;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::fio::Access;
use pm_bench::nvm::cell::{Cell, Point, Spread};
use pm_bench::nvm::device::Kind;
use pm_bench::nvm::figures::{FlushCell, LatencyCell, Layer, QueuedCell};
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::load::Direction;
use pm_bench::nvm::technology::Technology;
use pm_bench::{Pair, Report};
use std::path::Path;
use std::time::Duration;

pub(crate) const PATH: &str = "FUSE, loop";
const DEVICE_BYTES: u64 = 512 << 20;
const DEPTH: u32 = 16;
/// A median needs so many requests, one after the other.
const LEAST_REQUESTS: u32 = 30;
const LATENCY_GOAL: f64 = 0.95;
const BANDWIDTH_GOAL: f64 = 0.9;

/// The cells of this path.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    pub(crate) latencies: Vec<LatencyCell>,
    pub(crate) queued: Vec<QueuedCell>,
    pub(crate) flushes: Vec<FlushCell>,
}

/// The path without delay: microseconds, and megabytes a second of 16 requests.
#[derive(Clone, Copy, Debug)]
struct Floors {
    read_us: f64,
    write_us: f64,
    flush_us: f64,
    read_mb_s: f64,
    write_mb_s: f64,
}

struct Measurement<'a> {
    export: Export,
    floors: Floors,
    runs: Runs,
    report: &'a mut Report,
    points: Vec<Point>,
}

/// Measures the cells, and adds rows of asked against delivered to the report.
pub(crate) fn measure(
    journal: &mut Journal,
    cells: &Cells,
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let mark = journal.entries().len();
    let export = Export::add(journal, DEVICE_BYTES)?;
    client::fill(&export.device)?;
    let mut points = Vec::new();
    let floors = floors(&export.device, runs, &mut points)?;
    let mut measurement = Measurement { export, floors, runs, report, points };
    for layer in [Layer::Raw, Layer::Xfs, Layer::Ext4] {
        let latencies: Vec<_> = cells.latencies.iter().filter(|cell| cell.layer == layer).collect();
        let queued: Vec<_> = cells.queued.iter().filter(|cell| cell.layer == layer).collect();
        if latencies.is_empty() && queued.is_empty() && (layer != Layer::Raw || cells.flushes.is_empty()) {
            continue;
        }
        eprintln!("{PATH}, {layer}: {} cells", latencies.len() + queued.len());
        measurement.export.serve_as(None, Lead::default());
        let mounted = journal.entries().len();
        let target = if layer == Layer::Raw {
            measurement.export.device.clone()
        } else {
            files::make(layer, &measurement.export.device)?;
            let file = files::mount(journal, layer, &measurement.export.device)?.join("file");
            client::fill(&file)?;
            file
        };
        for cell in latencies {
            measurement.latency(cell, &target)?;
        }
        for cell in queued {
            measurement.queued(cell, &target)?;
        }
        if layer == Layer::Raw {
            for cell in &cells.flushes {
                measurement.flush(cell, &target)?;
            }
        }
        // Taking the file system down need not wait for a slow device.
        measurement.export.serve_as(None, Lead::default());
        journal.undo_to(mounted).into_diagnostic()?;
    }
    journal.undo_to(mark).into_diagnostic()?;
    Ok(measurement.points)
}

impl Measurement<'_> {
    fn latency(&mut self, cell: &LatencyCell, target: &Path) -> Result<()> {
        let floor = if cell.kind == Kind::Read { self.floors.read_us } else { self.floors.write_us };
        let is_raw = cell.layer == Layer::Raw;
        self.timed(&cell.name, &cell.technology, (cell.kind, cell.asked_ns()), floor, is_raw, target)
    }

    fn flush(&mut self, cell: &FlushCell, target: &Path) -> Result<()> {
        let floor = self.floors.flush_us;
        self.timed(&cell.name, &cell.technology, (Kind::Flush, cell.asked_ns()), floor, true, target)
    }

    /// Measures a latency in microseconds.
    fn timed(
        &mut self,
        name: &str,
        technology: &Technology,
        (kind, asked_ns): (Kind, u64),
        floor: f64,
        is_raw: bool,
        target: &Path,
    ) -> Result<()> {
        let asked = asked_ns as f64 / 1e3;
        let cell = if asked <= floor {
            Cell::Floor
        } else {
            self.export.serve_as(Some(technology), self.floors.lead());
            let time = self.runs.time.max(Duration::from_nanos(asked_ns) * LEAST_REQUESTS);
            let runs: Result<Vec<f64>> =
                (0..self.runs.count).map(|_| client::latency_us(target, kind, time)).collect();
            let runs = runs?;
            if is_raw {
                let accuracy = |got: &f64| Pair { ours: 1.0 - (got / asked - 1.0).abs(), theirs: 1.0 };
                let label = format!("{name}: {:.1} us", Spread::of(&runs).median);
                let pairs = runs.iter().map(accuracy).collect();
                self.report.row(label, format!("{asked:.1} us"), "", pairs, Some(LATENCY_GOAL));
            }
            Cell::Measured(Spread::of(&runs))
        };
        self.point(name, "us", is_raw.then_some(asked), floor, cell);
        Ok(())
    }

    /// Measures the bandwidth of 16 requests in flight.
    fn queued(&mut self, cell: &QueuedCell, target: &Path) -> Result<()> {
        let is_read = cell.load.direction == Direction::Read;
        let (access, floor) = if is_read {
            (Access::Read, self.floors.read_mb_s)
        } else {
            (Access::Write, self.floors.write_mb_s)
        };
        let asked = cell.load.asked_mb_s(&cell.technology);
        let is_raw = cell.layer == Layer::Raw;
        let result = if asked >= floor {
            Cell::Floor
        } else {
            self.export.serve_as(Some(&cell.technology), self.floors.lead());
            let needed = f64::from(LEAST_REQUESTS * DEPTH) * cell.load.bytes as f64 / (asked * 1e6);
            let time = self.runs.time.max(Duration::from_secs_f64(needed));
            let runs: Result<Vec<f64>> =
                (0..self.runs.count).map(|_| client::mb_s(target, access, DEPTH, time)).collect();
            let runs = runs?;
            if is_raw {
                let pairs = runs.iter().map(|rate| Pair { ours: *rate, theirs: asked }).collect();
                self.report.row(&cell.name, "asked", "MB/s", pairs, Some(BANDWIDTH_GOAL));
            }
            Cell::Measured(Spread::of(&runs))
        };
        self.point(&cell.name, "MB/s", is_raw.then_some(asked), floor, result);
        Ok(())
    }

    fn point(&mut self, name: &str, unit: &'static str, asked: Option<f64>, floor: f64, cell: Cell) {
        self.points.push(Point { name: name.into(), path: PATH, unit, asked, floor: Some(floor), cell });
    }
}

impl Floors {
    /// What is between the program and the server, in both directions.
    fn lead(self) -> Lead {
        let ns = |us: f64| u64::try_from(Duration::from_secs_f64(us / 1e6).as_nanos()).unwrap_or(0);
        Lead { read_ns: ns(self.read_us), write_ns: ns(self.write_us), flush_ns: ns(self.flush_us) }
    }
}

fn floors(device: &Path, runs: Runs, points: &mut Vec<Point>) -> Result<Floors> {
    let mut floor = |name: &str, unit, measure: &dyn Fn() -> Result<f64>| {
        let rates: Result<Vec<f64>> = (0..runs.count).map(|_| measure()).collect();
        let spread = Spread::of(&rates?);
        let name = format!("floor/fuse/{name}");
        points.push(Point { name, path: PATH, unit, asked: None, floor: None, cell: Cell::Measured(spread) });
        Ok::<_, miette::Report>(spread.median)
    };
    let latency = |kind| move || client::latency_us(device, kind, runs.time);
    let mb_s = |access| move || client::mb_s(device, access, DEPTH, runs.time);
    Ok(Floors {
        read_us: floor("read", "us", &latency(Kind::Read))?,
        write_us: floor("write", "us", &latency(Kind::Write))?,
        flush_us: floor("flush", "us", &latency(Kind::Flush))?,
        read_mb_s: floor("16-reads", "MB/s", &mb_s(Access::Read))?,
        write_mb_s: floor("16-writes", "MB/s", &mb_s(Access::Write))?,
    })
}
