//! The figures, one after the other, and the report.

use crate::bandwidth;
use crate::client::Runs;
use crate::databases;
use crate::latency;
use crate::paging;
use crate::queued;
use crate::supervisor;
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::nvm::cell::{Cell, Point};
use pm_bench::nvm::derived::{self, BUSES, curve};
use pm_bench::nvm::figures::{self, LatencyCell};
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::page;
use pm_bench::nvm::paper;
use pm_bench::nvm::spin::Delays;
use pm_bench::nvm::technology::{Technologies, Technology};
use pm_bench::{Cli, Plot, Report, Series};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use xtask::apt::{self, Need};

pub(crate) const NEEDS: [Need; 5] = [
    Need::new("fio", "fio"),
    Need::new("mkfs.xfs", "xfsprogs"),
    Need::new("mkfs.ext4", "e2fsprogs"),
    Need::new("losetup", "mount"),
    Need::new("fusermount3", "fuse3"),
];

/// What is measured; nothing chosen is everything.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The names, long or short, of technologies.
    pub(crate) technologies: Vec<String>,
    /// The numbers of figures.
    pub(crate) figures: Vec<u8>,
}

impl Chosen {
    fn has(&self, name: &str, technology: &Technology) -> bool {
        let is_of = |figure: &u8| name.starts_with(&format!("fig{figure}/"));
        let is_sweep = is_of(&6) || is_of(&7);
        let has_figure = self.figures.is_empty() || self.figures.iter().any(is_of);
        let is_named = |name: &String| technology.has_name(name);
        let is_any = self.technologies.is_empty() || !is_sweep && self.technologies.iter().any(is_named);
        has_figure && is_any
    }
}

/// Measures everything, and writes the report.
pub(crate) fn run(
    cli: &Cli,
    technologies: &Technologies,
    chosen: &Chosen,
    document: Option<&Path>,
) -> Result<ExitCode> {
    let mut journal = supervisor::journal_of_worker()?;
    let mut report = Report::new("nvm");
    let runs = Runs {
        count: cli.round_count(5, 2),
        time: if cli.quick { Duration::from_millis(150) } else { Duration::from_millis(500) },
    };
    report.fact("runs of a cell", runs.count);
    report.fact("time of a run", format!("{:?}", runs.time));
    let is_chosen = |name: &str, technology: &Technology| chosen.has(name, technology);
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
    let chosen = technologies.iter().filter(|technology| is_chosen("fig9/", technology));
    let with_databases = technologies.iter().filter(|technology| is_chosen("fig8/", technology));
    points.extend(databases(&mut journal, &with_databases.collect::<Vec<_>>(), runs, &mut report)?);
    points.extend(paging(&mut journal, &chosen.collect::<Vec<_>>(), runs, &mut report)?);
    points.extend(bandwidth::measure(&rates, runs, &mut report)?);
    points.extend(derived::all(&points));
    points.sort_by_key(|point| point.name.split('/').next().map(str::to_owned));
    let charts = [("fig6", latency_chart(&points)), ("fig7", bandwidth_chart(&points))];
    for (name, chart) in &charts {
        report.chart(*name, chart);
    }
    report.page(page::html("What slow and fast memories do to whole systems", &points, &charts));
    if let Some(path) = document {
        let text = paper::document(&report.machine_line(), &points);
        fs::write(path, text).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    }
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
        let mut points = Vec::new();
        if !spinning.is_empty() {
            points.extend(latency::measure(journal, spinning, runs, report)?);
        }
        if !behind_fuse.is_empty() {
            points.extend(queued::measure(journal, behind_fuse, runs, report)?);
        }
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

fn databases(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    if technologies.is_empty() {
        return Ok(Vec::new());
    }
    if apt::is_root() {
        return databases::measure(journal, technologies, runs, report);
    }
    let not = |name: &'static str, technology: &Technology| Point {
        name: figures::database(name, &technology.name),
        path: databases::PATHS[0],
        unit: "1/s",
        asked: None,
        floor: None,
        cell: Cell::Not("needs root, for block devices and file systems".into()),
    };
    let of = |name| technologies.iter().map(move |technology| not(name, technology));
    Ok(figures::DATABASES.into_iter().flat_map(of).collect())
}

fn paging(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    if technologies.is_empty() {
        return Ok(Vec::new());
    }
    if apt::is_root() {
        return paging::measure(journal, technologies, runs, report);
    }
    let not = |technology: &&Technology| Point {
        name: figures::paging(&technology.name, figures::PAGING_HALVES[0]),
        path: paging::PATH,
        unit: "1/s",
        asked: None,
        floor: None,
        cell: Cell::Not("needs root, for swapping and control groups".into()),
    };
    Ok(technologies.iter().map(not).collect())
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
