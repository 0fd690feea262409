//! The figures, one after the other, and the report.

use crate::bandwidth;
use crate::charts;
use crate::client::Runs;
use crate::export::Export;
use crate::latency;
use crate::paging;
use crate::programs::{self, Workload};
use crate::queued;
use crate::supervisor;
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::nvm::cell::{Cell, Point};
use pm_bench::nvm::derived;
use pm_bench::nvm::figures::{self, LatencyCell};
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::page;
use pm_bench::nvm::paper;
use pm_bench::nvm::spin::Delays;
use pm_bench::nvm::technology::{Technologies, Technology};
use pm_bench::{Cli, Report};
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

/// What can be chosen.
pub(crate) const FIGURES: [&str; 8] = ["4", "5", "6", "7", "8", "9", "10", "files"];

/// What is measured; nothing chosen is everything.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The names, long or short, of technologies.
    pub(crate) technologies: Vec<String>,
    /// The numbers of figures, or other names.
    pub(crate) figures: Vec<String>,
}

impl Chosen {
    fn has(&self, name: &str, technology: &Technology) -> bool {
        let is_of = |figure: &String| {
            let group = name.split('/').next().unwrap_or(name);
            group == figure || group.strip_prefix("fig") == Some(figure)
        };
        let is_sweep = ["fig6/", "fig7/"].iter().any(|figure| name.starts_with(figure));
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
    if apt::is_root() {
        apt::ensure(&NEEDS)?;
    }
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
    let of = |group: &str| -> Vec<&Technology> {
        technologies.iter().filter(|technology| is_chosen(group, technology)).collect()
    };
    let of_programs = |group: &str| -> Vec<&Technology> {
        let is_wanted = |name: &str| !cli.quick || figures::OF_QUICK_PROGRAMS.contains(&name);
        of(group).into_iter().filter(|technology| is_wanted(&technology.name)).collect()
    };
    points.extend(databases(&mut journal, &of_programs("fig8/"), runs, &mut report)?);
    points.extend(queries(&mut journal, &of_programs("fig8/"), runs, &mut report)?);
    points.extend(files(&mut journal, &of_programs("files/"), runs, cli.quick, &mut report)?);
    points.extend(paging(&mut journal, &of("fig9/"), runs, &mut report)?);
    points.extend(paged_programs(&mut journal, &of_programs("fig10/"), runs, &mut report)?);
    points.extend(bandwidth::measure(&rates, runs, &mut report)?);
    points.extend(derived::all(&points));
    points.sort_by_key(|point| point.name.split('/').next().map(str::to_owned));
    let charts = charts::all(&points);
    for (name, svg) in &charts {
        report.svg(*name, svg.clone());
    }
    report.page(page::html("What slow and fast memories do to whole systems", &points, &charts));
    if let Some(path) = document {
        let how = format!("{} Medians of {} runs.", report.machine_line(), runs.count);
        let text = paper::document(&how, &points);
        fs::write(path, text).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    }
    report.data("cells", serde_json::to_value(&points).into_diagnostic()?);
    cli.finish(&report)
}

/// Runs a stage, or lets its cells say why it cannot be run.
fn stage(
    cells: Vec<Point>,
    missing: Option<&String>,
    run: impl FnOnce() -> Result<Vec<Point>>,
) -> Result<Vec<Point>> {
    match missing {
        _ if cells.is_empty() => Ok(cells),
        None => run(),
        Some(why) => {
            let not = |cell| Point { cell: Cell::Not(why.clone()), ..cell };
            Ok(cells.into_iter().map(not).collect())
        }
    }
}

fn on_block_devices(
    journal: &mut Journal,
    spinning: &[LatencyCell],
    behind_fuse: &queued::Cells,
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let us = |ns: u64| ns as f64 / 1e3;
    let latency = |path| move |cell: &LatencyCell| planned(&cell.name, path, "us", Some(us(cell.asked_ns())));
    let cells = spinning.iter().map(latency(latency::PATH)).collect();
    let run = || latency::measure(journal, spinning, runs, report);
    let mut points = stage(cells, Zram::missing().as_ref(), run)?;
    let queued = behind_fuse
        .queued
        .iter()
        .map(|cell| planned(&cell.name, queued::PATH, "MB/s", Some(cell.load.asked_mb_s(&cell.technology))));
    let flushes = behind_fuse.flushes.iter();
    let flushes = flushes.map(|cell| planned(&cell.name, queued::PATH, "us", Some(us(cell.asked_ns()))));
    let slow = behind_fuse.latencies.iter().map(latency(queued::PATH));
    let run = || queued::measure(journal, behind_fuse, runs, report);
    points.extend(stage(slow.chain(queued).chain(flushes).collect(), Export::missing().as_ref(), run)?);
    Ok(points)
}

fn databases(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for name in figures::DATABASES {
        let cells = rates(technologies, |technology| figures::database(name, technology));
        let run = || {
            let database = programs::BerkeleyDb::compile(name)?;
            programs::measure(journal, &database, technologies, runs, report)
        };
        points.extend(stage(cells, on_files().as_ref(), run)?);
    }
    Ok(points)
}

fn queries(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for query in figures::QUERIES {
        let cells = rates(technologies, |technology| figures::database(query, technology));
        let missing = on_files().or_else(|| cells.first().and_then(|_| programs::Postgres::missing()));
        let run = || programs::measure(journal, &programs::Postgres::new(query), technologies, runs, report);
        points.extend(stage(cells, missing.as_ref(), run)?);
    }
    Ok(points)
}

fn files(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    is_quick: bool,
    report: &mut Report,
) -> Result<Vec<Point>> {
    if technologies.is_empty() {
        return Ok(Vec::new());
    }
    let cells = |name: &'static str| rates(technologies, |technology| figures::files(name, technology));
    let mut measure = |workload: &dyn Workload, report: &mut Report| {
        programs::measure(journal, workload, technologies, runs, report)
    };
    let mut points = stage(cells("postmark"), on_files().as_ref(), || measure(&programs::Postmark, report))?;
    let missing = on_files().or_else(programs::Patch::missing);
    points.extend(stage(cells("patch"), missing.as_ref(), || measure(&programs::Patch::prepare()?, report))?);
    let mut builds = cells("build");
    builds.iter_mut().for_each(|cell| cell.unit = "s");
    let run = || programs::build(journal, technologies, runs, is_quick, report);
    let missing = on_files().or_else(programs::build_missing);
    points.extend(stage(builds, missing.as_ref(), run)?);
    Ok(points)
}

/// Why no program can run on a file system on all technologies, if so.
fn on_files() -> Option<String> {
    Zram::missing().or_else(Export::missing)
}

/// Cells before rates are measured.
fn rates(technologies: &[&Technology], name: impl Fn(&str) -> String) -> Vec<Point> {
    let cell = |technology: &&Technology| planned(&name(&technology.name), programs::PATHS[0], "1/s", None);
    technologies.iter().map(cell).collect()
}

fn paged_programs(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let of = |name: &'static str| rates(technologies, move |technology| figures::paged(name, technology));
    let cells = figures::PAGED_PROGRAMS.into_iter().flat_map(of).collect();
    let missing = Zram::missing().or_else(paging::missing);
    stage(cells, missing.as_ref(), || paging::measure_programs(journal, technologies, runs, report))
}

fn paging(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let of = |halves| {
        let name = move |technology: &&Technology| figures::paging(&technology.name, halves);
        technologies.iter().map(move |technology| planned(&name(technology), paging::PATH, "1/s", None))
    };
    let cells = figures::PAGING_HALVES.into_iter().flat_map(of).collect();
    let missing = Zram::missing().or_else(paging::missing);
    stage(cells, missing.as_ref(), || paging::measure(journal, technologies, runs, report))
}

/// A cell before it is measured.
fn planned(name: &str, path: &'static str, unit: &'static str, asked: Option<f64>) -> Point {
    Point { name: name.to_owned(), path, unit, asked, floor: None, cell: Cell::Floor }
}
