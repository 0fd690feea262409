//! Fig. 10: how much slower programs are whose data does not fit into their memory.

use super::group;
use super::kernels::{self, Programs};
use super::measure::{PATH, Swap, delays};
use super::program::Program;
use crate::client::{self, Runs};
use crate::on::Slopes;
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::nvm::cell::{Cell, Point, Spread, digits};
use pm_bench::nvm::device::Counts;
use pm_bench::nvm::figures;
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::spin::Delays;
use pm_bench::nvm::technology::Technology;
use pm_bench::{Conversation, Pair, Report, median};
use std::time::Duration;

/// A step that would take longer is predicted, and not run.
const LONGEST_STEP: Duration = Duration::from_secs(20);
const GOAL: f64 = 0.85;

/// Some steps of a program.
#[derive(Clone, Copy, Debug)]
struct Steps {
    seconds: f64,
    count: f64,
    /// The requests of the swap device.
    requests: Counts,
}

/// The steps a second on one technology.
#[derive(Clone, Debug, Default)]
struct Rates {
    measured: Vec<f64>,
    predicted: Vec<f64>,
}

/// Measures the programs with each technology, and adds rows of measured against predicted rates to the report.
pub(crate) fn measure_programs(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let programs = Programs::compile()?;
    // A step takes seconds on a slow technology.
    let runs = Runs { count: runs.count.div_ceil(2), ..runs };
    let mark = journal.entries().len();
    let swap = Swap::add(journal, runs)?;
    let mut points = Vec::new();
    let mut killed = 0;
    for name in figures::PAGED_PROGRAMS {
        eprintln!("{PATH}, {name}: {} technologies", technologies.len());
        let group_mark = journal.entries().len();
        let group = group::add(journal, kernels::memory_bytes(name)?)?;
        points.push(measured(name, "dram", None, &in_memory(programs.start(name, None)?, runs)?));
        let mut program = Program::new(|| programs.start(name, Some(&group)), &mut killed);
        let (alone, rates) = paged(&swap, &mut program, technologies, runs)?;
        drop(program);
        journal.undo_to(group_mark).into_diagnostic()?;
        points.push(measured(name, "no-delay", None, &alone));
        for (technology, rates) in technologies.iter().zip(&rates) {
            points.push(evaluated(name, technology, rates, report));
        }
    }
    report
        .fact("scientific programs that the kernel killed while they paged, and that were run again", killed);
    journal.undo_to(mark).into_diagnostic()?;
    Ok(points)
}

/// The steps a second of a program whose data is in memory.
fn in_memory(mut program: Conversation, runs: Runs) -> Result<Vec<f64>> {
    let mut rates = Vec::new();
    for _ in 0..runs.count {
        let [seconds, count, _] = program.ask(&runs.time.as_millis().to_string())?;
        rates.push(count / seconds);
    }
    program.finish()?;
    Ok(rates)
}

/// Measures a program that pages: without delay, and with that of each technology, in rounds. What takes too long has predicted rates alone; what the kernel
/// has killed has fewer rounds, or none.
fn paged(
    swap: &Swap,
    program: &mut Program<'_>,
    technologies: &[&Technology],
    runs: Runs,
) -> Result<(Vec<f64>, Vec<Rates>)> {
    let mut alone = Vec::new();
    let mut rates = vec![Rates::default(); technologies.len()];
    // The first steps find more in memory than later ones.
    program.attempt(|program| steps(&swap.zram, program, Duration::ZERO))?;
    for _ in 0..runs.count {
        let Some(without) = program.attempt(|program| steps(&swap.zram, program, runs.time))? else {
            continue;
        };
        let own_s = without.seconds / without.count;
        alone.push(1.0 / own_s);
        for (technology, rates) in technologies.iter().zip(&mut rates) {
            let asked_s = own_s + without.requests.seconds_on(technology) / without.count;
            let spins = delays(technology, swap.floors, 0);
            let Some(spins) = spins.filter(|_| asked_s < LONGEST_STEP.as_secs_f64()) else {
                rates.predicted.push(1.0 / asked_s);
                continue;
            };
            // Started before, for that is not measured.
            program.attempt(|_| Ok(()))?;
            let attached = swap.zram.delay(|device| Delays { device, ..spins })?;
            let with = program.attempt(|program| steps(&swap.zram, program, runs.time))?;
            drop(attached);
            if let Some(with) = with {
                let spun_s = Slopes::spun_s(spins, with.requests);
                rates.measured.push(with.count / with.seconds);
                rates.predicted.push(1.0 / (own_s + spun_s / with.count));
            }
        }
    }
    program.finish()?;
    Ok((alone, rates))
}

/// Lets a program work for a time, at least one step.
fn steps(zram: &Zram, program: &mut Conversation, time: Duration) -> Result<Steps> {
    let before = client::counts(&zram.device)?;
    let [seconds, count, _] = program.ask(&time.as_millis().to_string())?;
    Ok(Steps { seconds, count, requests: client::counts(&zram.device)?.since(before) })
}

/// The cell of a technology, and its row if it was measured.
fn evaluated(program: &str, technology: &Technology, rates: &Rates, report: &mut Report) -> Point {
    let Rates { measured: got, predicted } = rates;
    let asked = (!predicted.is_empty()).then(|| median(predicted.iter().copied()));
    let point = measured(program, &technology.name, asked, got);
    if let (Some(asked), false) = (asked, got.is_empty()) {
        let accuracy =
            |(got, asked): (&f64, &f64)| Pair { ours: 1.0 - (got / asked - 1.0).abs(), theirs: 1.0 };
        let label = format!("{}: {}/s", point.name, digits(Spread::of(got).median));
        let asked = format!("{}/s from its requests", digits(asked));
        report.row(label, asked, "", got.iter().zip(predicted).map(accuracy).collect(), Some(GOAL));
    }
    point
}

fn measured(program: &str, technology: &str, asked: Option<f64>, rates: &[f64]) -> Point {
    let cell = match asked {
        _ if !rates.is_empty() => Cell::Measured(Spread::of(rates)),
        Some(asked) => Cell::Predicted(asked),
        None => Cell::Not("the kernel kills the program for lack of memory".into()),
    };
    Point { name: figures::paged(program, technology), path: PATH, unit: "1/s", asked, floor: None, cell }
}
