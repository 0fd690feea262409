//! Programs that work on XFS for a time, and how much they do in it: measured, and predicted from the requests of the device.

use crate::client::{self, Runs};
use crate::export::{Export, Lead};
use crate::files;
use crate::latency;
use crate::on::Slopes;
use crate::queued;
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::nvm::cell::{Cell, Point, Spread, digits};
use pm_bench::nvm::figures::Layer;
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::technology::Technology;
use pm_bench::{Conversation, Pair, Report, median};
use std::path::Path;
use std::time::Duration;

pub(crate) const PATHS: [&str; 2] = [latency::PATH, queued::PATH];
const DEVICE_BYTES: u64 = 2 << 30;
/// A disk completes some ten transactions a second.
const LEAST_TIME_ON_DISK: Duration = Duration::from_secs(2);
/// The time of a program is predicted within 15 %.
const GOAL: f64 = 0.85;

/// A program that is measured.
pub(crate) trait Workload {
    /// What it is, for messages.
    fn title(&self) -> String;

    /// The name of its cell of a technology.
    fn cell(&self, technology: &str) -> String;

    /// Starts it in the directory of a new file system. When it is ready, it answers a number of milliseconds with the seconds that it has worked, and how often.
    fn start(&self, at: &Path) -> Result<Conversation>;
}

/// The rates of one technology.
#[derive(Clone, Debug, Default)]
struct Rates {
    measured: Vec<f64>,
    predicted: Vec<f64>,
}

/// Measures a program on these technologies, and adds rows of measured against predicted rates to the report.
pub(crate) fn measure(
    journal: &mut Journal,
    workload: &dyn Workload,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    eprintln!("{}: {} technologies", workload.title(), technologies.len());
    let (short, long): (Vec<&Technology>, Vec<&Technology>) =
        technologies.iter().partition(|technology| latency::can_spin(technology));
    let mut points = Vec::new();
    let mark = journal.entries().len();
    let (alone, rates) = on_zram(journal, workload, &short, runs)?;
    journal.undo_to(mark).into_diagnostic()?;
    points.push(point(workload.cell("no-delay"), PATHS[0], None, &alone));
    points.extend(evaluated(workload, PATHS[0], &short, &rates, report));
    if !long.is_empty() {
        let (alone, rates) = behind_fuse(journal, workload, &long, runs)?;
        journal.undo_to(mark).into_diagnostic()?;
        points.push(point(workload.cell("no-delay-fuse"), PATHS[1], None, &alone));
        points.extend(evaluated(workload, PATHS[1], &long, &rates, report));
    }
    Ok(points)
}

/// Makes a file system and starts the program on it, without delay.
fn start(journal: &mut Journal, workload: &dyn Workload, device: &Path) -> Result<Conversation> {
    files::make(Layer::Xfs, device)?;
    workload.start(&files::mount(journal, Layer::Xfs, device)?)
}

/// Lets it work for a time. Returns how often it does its work in a second, and in all.
fn rate(program: &mut Conversation, time: Duration) -> Result<[f64; 2]> {
    let [seconds, count] = program.ask(&time.as_millis().to_string())?;
    Ok([count / seconds, count])
}

fn on_zram(
    journal: &mut Journal,
    workload: &dyn Workload,
    technologies: &[&Technology],
    runs: Runs,
) -> Result<(Vec<f64>, Vec<Rates>)> {
    let zram = Zram::add(journal, DEVICE_BYTES)?;
    client::fill(&zram.device)?;
    let floors = latency::floors(&zram, runs, &mut Vec::new())?;
    let slopes = Slopes::of_zram(&zram.device, floors, runs)?;
    let mut program = start(journal, workload, &zram.device)?;
    let mut alone = Vec::new();
    let mut rates = vec![Rates::default(); technologies.len()];
    for _ in 0..runs.count {
        let [without, _] = rate(&mut program, runs.time)?;
        alone.push(without);
        for (technology, rates) in technologies.iter().zip(&mut rates) {
            let attached = zram.delay(|device| slopes.delays(technology, floors, device))?;
            let before = client::counts(&zram.device)?;
            let [with, count] = rate(&mut program, runs.time)?;
            let counts = client::counts(&zram.device)?.since(before);
            drop(attached);
            let spun = Slopes::spun_s(slopes.delays(technology, floors, 0), counts);
            rates.measured.push(with);
            rates.predicted.push(1.0 / (1.0 / without + spun / count));
        }
    }
    program.finish()?;
    Ok((alone, rates))
}

fn behind_fuse(
    journal: &mut Journal,
    workload: &dyn Workload,
    technologies: &[&Technology],
    runs: Runs,
) -> Result<(Vec<f64>, Vec<Rates>)> {
    let export = Export::add(journal, DEVICE_BYTES)?;
    let mut program = start(journal, workload, &export.device)?;
    let mut alone = Vec::new();
    let mut rates = vec![Rates::default(); technologies.len()];
    for _ in 0..runs.count {
        let [without, _] = rate(&mut program, runs.time)?;
        alone.push(without);
        for (technology, rates) in technologies.iter().zip(&mut rates) {
            export.serve_as(Some(technology), Lead::default());
            let with = rate(&mut program, runs.time.max(LEAST_TIME_ON_DISK));
            let counts = export.counts();
            export.serve_as(None, Lead::default());
            let [with, count] = with?;
            rates.measured.push(with);
            rates.predicted.push(1.0 / (1.0 / without + counts.busy_s / count));
        }
    }
    program.finish()?;
    Ok((alone, rates))
}

/// The cells of these technologies, and their rows.
fn evaluated(
    workload: &dyn Workload,
    path: &'static str,
    technologies: &[&Technology],
    rates: &[Rates],
    report: &mut Report,
) -> Vec<Point> {
    let mut points = Vec::new();
    for (technology, Rates { measured, predicted }) in technologies.iter().zip(rates) {
        let pairs = measured.iter().zip(predicted).map(|(rate, predicted)| {
            let error = (rate / predicted - 1.0).abs();
            Pair { ours: 1.0 - error, theirs: 1.0 }
        });
        let name = workload.cell(&technology.name);
        let asked = median(predicted.iter().copied());
        let label = format!("{name}: {}/s", digits(Spread::of(measured).median));
        report.row(label, format!("{}/s from its requests", digits(asked)), "", pairs.collect(), Some(GOAL));
        points.push(point(name, path, Some(asked), measured));
    }
    points
}

fn point(name: String, path: &'static str, asked: Option<f64>, rates: &[f64]) -> Point {
    Point { name, path, unit: "1/s", asked, floor: None, cell: Cell::Measured(Spread::of(rates)) }
}
