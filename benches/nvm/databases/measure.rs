//! Berkeley DB on XFS: durable transactions a second, of a B-tree and of a hash table.

use crate::client::{self, Counts, Runs};
use crate::export::{Export, Lead};
use crate::files;
use crate::latency;
use crate::on::Slopes;
use crate::queued;
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::nvm::cell::{Cell, Point, Spread};
use pm_bench::nvm::device::{Device, Kind};
use pm_bench::nvm::figures::{self, DATABASES, Layer, PAGE_BYTES};
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::spin::Delays;
use pm_bench::nvm::technology::Technology;
use pm_bench::{Conversation, Pair, Report, median};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use xtask::apt::{self, Need};
use xtask::process;

const SOURCE: &str = include_str!("../../c/berkeley_db.c");
const NEEDS: [Need; 2] = [Need::new("include/db.h", "libdb5.3-dev"), Need::new("cc", "gcc")];
pub(crate) const PATHS: [&str; 2] = [latency::PATH, queued::PATH];
const DEVICE_BYTES: u64 = 1 << 30;
/// Some 200 MB, with a cache of 16 MB.
const RECORDS: &str = "1000000";
/// A disk completes some ten transactions a second.
const LEAST_TIME_ON_DISK: Duration = Duration::from_secs(2);
/// The time of a program is predicted within 15 %.
const GOAL: f64 = 0.85;

/// The compiled program.
struct Program {
    path: PathBuf,
    _directory: TempDir,
}

/// Measures both databases on these technologies, and adds rows of predicted against measured rates to the report.
pub(crate) fn measure(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let program = Program::compile()?;
    let is_short = |technology: &&&Technology| {
        let latency = |kind| Device::latency_ns(technology, kind, PAGE_BYTES);
        Delays::can_be(latency(Kind::Read)) && Delays::can_be(latency(Kind::Write))
    };
    let (short, long): (Vec<&Technology>, Vec<&Technology>) =
        technologies.iter().partition(|technology| is_short(technology));
    let mut points = Vec::new();
    for database in DATABASES {
        eprintln!("Berkeley DB, {database}: {} technologies", technologies.len());
        points.extend(on_zram(journal, &program, database, &short, runs, report)?);
        if !long.is_empty() {
            points.extend(behind_fuse(journal, &program, database, &long, runs)?);
        }
    }
    Ok(points)
}

impl Program {
    fn compile() -> Result<Self> {
        apt::ensure(&NEEDS)?;
        let directory = tempfile::tempdir().into_diagnostic()?;
        let (source, path) = (directory.path().join("berkeley_db.c"), directory.path().join("berkeley_db"));
        fs::write(&source, SOURCE).into_diagnostic().wrap_err_with(|| source.display().to_string())?;
        let options = ["-O3", "-std=gnu17", "-Wall", "-Wextra", "-Werror"];
        process::output(Command::new("cc").args(options).arg(&source).arg("-o").arg(&path).arg("-ldb"))?;
        Ok(Self { path, _directory: directory })
    }

    /// Makes a file system and the database on it, without delay.
    fn start(&self, journal: &mut Journal, device: &Path, database: &str) -> Result<Conversation> {
        files::make(Layer::Xfs, device)?;
        let at = files::mount(journal, Layer::Xfs, device)?;
        Conversation::start(Command::new(&self.path).arg(at).args([database, RECORDS]))
    }
}

/// Lets it work for a time. Returns transactions a second.
fn rate(program: &mut Conversation, time: Duration) -> Result<[f64; 2]> {
    let [seconds, transactions] = program.ask(&time.as_millis().to_string())?;
    Ok([transactions / seconds, transactions])
}

fn on_zram(
    journal: &mut Journal,
    program: &Program,
    database: &str,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let mark = journal.entries().len();
    let zram = Zram::add(journal, DEVICE_BYTES)?;
    client::fill(&zram.device)?;
    let floors = latency::floors(&zram, runs, &mut Vec::new())?;
    let slopes = Slopes::of_zram(&zram.device, floors, runs)?;
    let mut program = program.start(journal, &zram.device, database)?;
    let mut alone = Vec::new();
    let mut measured: Vec<[Vec<f64>; 2]> = vec![[Vec::new(), Vec::new()]; technologies.len()];
    for _ in 0..runs.count {
        let [without, _] = rate(&mut program, runs.time)?;
        alone.push(without);
        for (technology, [rates, predicted]) in technologies.iter().zip(&mut measured) {
            let attached = zram.delay(|device| slopes.delays(technology, floors, device))?;
            let before: Counts = client::counts(&zram.device)?;
            let [with, transactions] = rate(&mut program, runs.time)?;
            let counts = client::counts(&zram.device)?.since(before);
            drop(attached);
            let spun = Slopes::spun_s(slopes.delays(technology, floors, 0), counts);
            rates.push(with);
            predicted.push(1.0 / (1.0 / without + spun / transactions));
        }
    }
    program.finish()?;
    journal.undo_to(mark).into_diagnostic()?;
    let mut points = vec![point(database, "no-delay", PATHS[0], None, &alone)];
    for (technology, [rates, predicted]) in technologies.iter().zip(measured) {
        let pairs = rates.iter().zip(&predicted).map(|(rate, predicted)| {
            let error = (rate / predicted - 1.0).abs();
            Pair { ours: 1.0 - error, theirs: 1.0 }
        });
        let name = figures::database(database, &technology.name);
        let asked = median(predicted.iter().copied());
        let label = format!("{name}: {:.0}/s", Spread::of(&rates).median);
        report.row(label, format!("{asked:.0}/s from its requests"), "", pairs.collect(), Some(GOAL));
        points.push(point(database, &technology.name, PATHS[0], Some(asked), &rates));
    }
    Ok(points)
}

fn behind_fuse(
    journal: &mut Journal,
    program: &Program,
    database: &str,
    technologies: &[&Technology],
    runs: Runs,
) -> Result<Vec<Point>> {
    let mark = journal.entries().len();
    let export = Export::add(journal, DEVICE_BYTES)?;
    let mut program = program.start(journal, &export.device, database)?;
    let mut alone = Vec::new();
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); technologies.len()];
    for _ in 0..runs.count {
        alone.push(rate(&mut program, runs.time)?[0]);
        for (technology, rates) in technologies.iter().zip(&mut measured) {
            export.serve_as(Some(technology), Lead::default());
            let with = rate(&mut program, runs.time.max(LEAST_TIME_ON_DISK));
            export.serve_as(None, Lead::default());
            rates.push(with?[0]);
        }
    }
    program.finish()?;
    journal.undo_to(mark).into_diagnostic()?;
    let mut points = vec![point(database, "no-delay-fuse", PATHS[1], None, &alone)];
    let measured = technologies.iter().zip(measured);
    points.extend(
        measured.map(|(technology, rates)| point(database, &technology.name, PATHS[1], None, &rates)),
    );
    Ok(points)
}

fn point(database: &str, technology: &str, path: &'static str, asked: Option<f64>, rates: &[f64]) -> Point {
    let name = figures::database(database, technology);
    Point { name, path, unit: "1/s", asked, floor: None, cell: Cell::Measured(Spread::of(rates)) }
}
