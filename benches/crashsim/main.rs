//! The speed of pm-crashsim: the rate of crash images that are made, recovered from and checked; the effect of a search directed by the lines that
//! recovery reads, of the region's size, and of a second thread. `docs/benchmarks.md` explains the table.

mod log;
mod raw;
mod table;

use clap::Parser;
use miette::{Result, miette};
use pm_bench::{Cli, Pair, Report, Side, median, processor_time, rounds, rounds_of};
use pm_crashsim::{Coverage, Explorer, Image};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The goal in images a second, on one core, for a recovery of one load.
const GOAL_PER_SECOND: f64 = 200_000.0;

/// More choices than any point has here, so that an exhaustive search is complete.
const CHOICES: u64 = 1 << 20;

/// The rate of crash images that are made, recovered from and checked.
#[derive(Debug, Parser)]
#[command(name = "crashsim", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
}

/// Explores all crashes of a program that starts from an image.
type Explore = fn(&Explorer, &Image) -> Result<Coverage, Box<pm_crashsim::Failure>>;

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let round_count = options.cli.round_count(15, 3);
    let mut report = Report::new("crashsim");
    report.fact("rounds", round_count);
    raw_rate(&mut report, round_count)?;
    let programs: [(&str, Explore, u64); 2] = [
        ("log append", log::explore, log::REGION_BYTES),
        ("hash table, 1,000 operations", table::explore, table::REGION_BYTES),
    ];
    for (name, explore, region_bytes) in programs {
        directed(&mut report, name, explore, region_bytes, round_count)?;
    }
    region_sizes(&mut report, round_count)?;
    jobs(&mut report, round_count)?;
    options.cli.finish(&report)
}

/// One crash deep, with every legal choice.
fn explorer() -> Explorer {
    Explorer::default().crashes(1).choices_per_point(CHOICES)
}

/// The highest rate of images, against the goal.
fn raw_rate(report: &mut Report, round_count: usize) -> Result<()> {
    let image = Image::zeroed(64 << 10);
    let pairs = (0..round_count).map(|_| {
        let (coverage, time) = measured(raw::explore, &explorer().reduce(false), &image)?;
        Ok(Pair { ours: rate(&coverage, time), theirs: GOAL_PER_SECOND })
    });
    let pairs = pairs.collect::<Result<_>>()?;
    report.row("64 KiB, one load", "200 K", "img/s", pairs, Some(1.0));
    Ok(())
}

/// The search directed by the lines that recovery reads, against an image for each choice. Both check the same, so runs a second are compared.
fn directed(
    report: &mut Report,
    name: &str,
    explore: Explore,
    region_bytes: u64,
    round_count: usize,
) -> Result<()> {
    let image = Image::zeroed(region_bytes);
    let mut figures = [(0, 0, Vec::new()), (0, 0, Vec::new())];
    let [pairs] = rounds(round_count, |side| {
        let (coverage, time) = measured(explore, &explorer().reduce(side == Side::Ours), &image)?;
        let (legal, recoveries, seconds) = &mut figures[usize::from(side == Side::Theirs)];
        (*legal, *recoveries) = (coverage.levels[0].legal, coverage.recoveries());
        seconds.push(time.as_secs_f64());
        Ok([1.0 / time.as_secs_f64()])
    })?;
    for (way, (legal, recoveries, seconds)) in ["directed", "exhaustive"].into_iter().zip(figures) {
        let seconds = median(seconds);
        let fact = format!(
            "{legal} legal choices, {recoveries} recoveries, {:.1} ms: {:.0} recoveries/s, {:.0} choices/s",
            seconds * 1e3,
            recoveries as f64 / seconds,
            legal as f64 / seconds,
        );
        report.fact(&format!("{name}, {way}"), fact);
    }
    report.row(name, "exhaustive", "runs/s", pairs, None);
    Ok(())
}

/// The first program in larger regions: the cost of an image depends on the changed lines, not on the region's size.
fn region_sizes(report: &mut Report, round_count: usize) -> Result<()> {
    const SIZES: [(&str, u64); 3] = [("64 KiB", 64 << 10), ("16 MiB", 16 << 20), ("1 GiB", 1 << 30)];
    let rates: Vec<[f64; 3]> = rounds_of(round_count, |index| {
        let image = Image::zeroed(SIZES[index].1);
        let (coverage, time) = measured(raw::explore, &explorer().reduce(false), &image)?;
        Ok(rate(&coverage, time))
    })?;
    for (index, (name, _)) in SIZES.into_iter().enumerate().skip(1) {
        let pairs = rates.iter().map(|rates| Pair { ours: rates[index], theirs: rates[0] }).collect();
        report.row(name, SIZES[0].0, "img/s", pairs, Some(0.9));
    }
    Ok(())
}

/// Two threads against one, in elapsed time.
fn jobs(report: &mut Report, round_count: usize) -> Result<()> {
    let image = Image::zeroed(table::REGION_BYTES);
    let [pairs] = rounds(round_count, |side| {
        let jobs = if side == Side::Ours { 2 } else { 1 };
        let begin = Instant::now();
        let coverage = explored(table::explore, &explorer().reduce(false).jobs(jobs), &image)?;
        Ok([rate(&coverage, begin.elapsed())])
    })?;
    report.row("jobs(2)", "jobs(1)", "img/s", pairs, None);
    Ok(())
}

/// The coverage of a search, and its processor time.
fn measured(explore: Explore, explorer: &Explorer, image: &Image) -> Result<(Coverage, Duration)> {
    let begin = processor_time();
    let coverage = explored(explore, explorer, image)?;
    Ok((coverage, processor_time() - begin))
}

fn explored(explore: Explore, explorer: &Explorer, image: &Image) -> Result<Coverage> {
    let coverage = explore(explorer, image).map_err(|failure| miette!("{failure}"))?;
    if !coverage.is_exhaustive() {
        return Err(miette!("the search was not exhaustive: {coverage}"));
    }
    Ok(coverage)
}

fn rate(coverage: &Coverage, time: Duration) -> f64 {
    coverage.recoveries() as f64 / time.as_secs_f64()
}
