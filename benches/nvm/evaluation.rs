//! The figures, one after the other, and the report.

use crate::bandwidth;
use crate::client::Runs;
use crate::latency;
use crate::queued;
use crate::supervisor;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::nvm::cell::{Cell, Point, Spread, crossing};
use pm_bench::nvm::figures::{self, LatencyCell};
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::page;
use pm_bench::nvm::spin::Delays;
use pm_bench::nvm::technology::{Technologies, Technology};
use pm_bench::{Cli, Plot, Report, Series};
use std::process::ExitCode;
use std::time::Duration;
use xtask::apt::{self, Need};

const NEEDS: [Need; 5] = [
    Need::new("fio", "fio"),
    Need::new("mkfs.xfs", "xfsprogs"),
    Need::new("mkfs.ext4", "e2fsprogs"),
    Need::new("losetup", "mount"),
    Need::new("fusermount3", "fuse3"),
];
const BUSES: [&str; 2] = ["memory-bus", "pcie"];

/// Measures everything, and writes the report.
pub(crate) fn run(cli: &Cli, technologies: &Technologies, only: &[String]) -> Result<ExitCode> {
    let mut journal = supervisor::journal_of_worker()?;
    let mut report = Report::new("nvm");
    let runs = Runs {
        count: cli.round_count(5, 2),
        time: if cli.quick { Duration::from_millis(150) } else { Duration::from_millis(500) },
    };
    report.fact("runs of a cell", runs.count);
    report.fact("time of a run", format!("{:?}", runs.time));
    let is_chosen = |name: &str, technology: &Technology| {
        let is_sweep = name.starts_with("fig6/") || name.starts_with("fig7/");
        only.is_empty() || !is_sweep && only.contains(&technology.name)
    };
    let mut cells = figures::latency_cells(technologies).into_diagnostic()?;
    cells.retain(|cell| is_chosen(&cell.name, &cell.technology));
    // A thread may not spin in the kernel for so long.
    let (spinning, latencies) = cells.into_iter().partition(|cell| Delays::can_be(cell.asked_ns()));
    let mut queued = figures::queued_cells(technologies).into_diagnostic()?;
    queued.retain(|cell| is_chosen(&cell.name, &cell.technology));
    let mut flushes = figures::flush_cells(technologies);
    flushes.retain(|cell| is_chosen(&cell.name, &cell.technology));
    let behind_fuse = queued::Cells { latencies, queued, flushes };
    let mut rates = figures::bandwidth_cells(technologies).into_diagnostic()?;
    rates.retain(|cell| is_chosen(&cell.name, &cell.technology));
    let mut points = on_block_devices(&mut journal, &spinning, &behind_fuse, runs, &mut report)?;
    points.extend(bandwidth::measure(&rates, runs, &mut report)?);
    points.extend(added_by_file_systems(&points));
    points.extend(crossings(&points));
    points.sort_by_key(|point| point.name.split('/').next().map(str::to_owned));
    let charts = [("fig6", latency_chart(&points)), ("fig7", bandwidth_chart(&points))];
    for (name, chart) in &charts {
        report.chart(*name, chart);
    }
    report.page(page::html("What slow and fast memories do to whole systems", &points, &charts));
    report.data("cells", serde_json::to_value(&points).into_diagnostic()?);
    cli.finish(&report)
}

fn on_block_devices(
    journal: &mut Journal,
    spinning: &[LatencyCell],
    behind_fuse: &queued::Cells,
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    if apt::is_root() {
        apt::ensure(&NEEDS)?;
        let mut points = latency::measure(journal, spinning, runs, report)?;
        points.extend(queued::measure(journal, behind_fuse, runs, report)?);
        return Ok(points);
    }
    let why = "needs root, for block devices";
    report.fact("Figs 4 with file systems, 5 and 6", why);
    let not = |name: &str, path, unit, asked| Point {
        name: name.to_owned(),
        path,
        unit,
        asked: Some(asked),
        floor: None,
        cell: Cell::Not(why.into()),
    };
    let us = |ns: u64| ns as f64 / 1e3;
    let spinning = spinning.iter().map(|cell| not(&cell.name, latency::PATH, "us", us(cell.asked_ns())));
    let slow = behind_fuse.latencies.iter();
    let slow = slow.map(|cell| not(&cell.name, queued::PATH, "us", us(cell.asked_ns())));
    let queued = behind_fuse.queued.iter();
    let queued =
        queued.map(|cell| not(&cell.name, queued::PATH, "MB/s", cell.load.asked_mb_s(&cell.technology)));
    let flushes = behind_fuse.flushes.iter();
    let flushes = flushes.map(|cell| not(&cell.name, queued::PATH, "us", us(cell.asked_ns())));
    Ok(spinning.chain(slow).chain(queued).chain(flushes).collect())
}

/// What each file system adds to the latency of each technology, in microseconds and as a part of it.
fn added_by_file_systems(points: &[Point]) -> Vec<Point> {
    let spread_of = |name: &str| {
        let point = points.iter().find(|point| point.name == name)?;
        if let Cell::Measured(spread) = point.cell { Some(spread) } else { None }
    };
    let mut added = Vec::new();
    for point in points.iter().filter(|point| point.name.starts_with("fig5/")) {
        let parts: Vec<&str> = point.name.split('/').collect();
        let [_, technology, layer @ ("xfs" | "ext4"), kind] = parts[..] else { continue };
        let raw = spread_of(&format!("fig5/{technology}/raw/{kind}"));
        let (Some(raw), Some(with)) = (raw, spread_of(&point.name)) else { continue };
        let derived = |part: &str, unit, of: &dyn Fn(f64, f64) -> f64| Point {
            name: format!("fig5/{technology}/{layer}-adds/{kind}/{part}"),
            path: point.path,
            unit,
            asked: None,
            floor: None,
            // At worst, the extremes were those of different moments.
            cell: Cell::Measured(Spread {
                median: of(with.median, raw.median),
                low: of(with.low, raw.high),
                high: of(with.high, raw.low),
            }),
        };
        added.push(derived("us", "us", &|with, raw| with - raw));
        added.push(derived("percent", "%", &|with, raw| 100.0 * (with / raw - 1.0)));
    }
    added
}

/// The latency at which the memory bus takes longer than PCI Express.
fn crossings(points: &[Point]) -> Vec<Point> {
    let crossing_of = |kind: &str| {
        let curves = BUSES.map(|bus| curve(points, "fig6", bus, kind, Point::median));
        let asked = BUSES.map(|bus| curve(points, "fig6", bus, kind, |point| point.asked));
        let at = crossing(&curves[0], &curves[1]);
        let none = || Cell::Not("the curves do not cross".into());
        (!curves[0].is_empty()).then(|| Point {
            name: format!("fig6/crossing/{kind}"),
            path: "zram",
            unit: "ns",
            asked: crossing(&asked[0], &asked[1]),
            floor: None,
            cell: at.map_or_else(none, |at| Cell::Measured(Spread { median: at, low: at, high: at })),
        })
    };
    ["read", "write"].into_iter().filter_map(crossing_of).collect()
}

/// The points of one curve of Fig. 6 or 7, over nanoseconds of the memory.
fn curve(
    points: &[Point],
    figure: &str,
    bus: &str,
    kind: &str,
    value: impl Fn(&Point) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let point = |point: &Point| {
        let parts: Vec<&str> = point.name.split('/').collect();
        let [name, of, ns, direction] = parts[..] else { return None };
        (name == figure && of == bus && direction == kind).then_some(())?;
        Some((ns.parse().ok()?, value(point)?))
    };
    points.iter().filter_map(point).collect()
}

fn latency_chart(points: &[Point]) -> Plot {
    chart(points, "fig6", "Fig. 6: latency of 4 KiB", "latency of a request, us")
}

fn bandwidth_chart(points: &[Point]) -> Plot {
    chart(points, "fig7", "Fig. 7: bandwidth of 16 threads, 4 KiB", "MB/s")
}

fn chart(points: &[Point], figure: &str, title: &str, unit: &str) -> Plot {
    let curves = BUSES.into_iter().flat_map(|bus| ["read", "write"].map(|kind| (bus, kind)));
    let series = curves.map(|(bus, kind)| Series {
        name: format!("{bus}, {kind}"),
        points: curve(points, figure, bus, kind, Point::median),
    });
    Plot {
        title: title.into(),
        labels: ["latency of the memory, ns".into(), unit.into()],
        logarithmic: [true, true],
        series: series.collect(),
    }
}
