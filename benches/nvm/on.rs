//! A program of the user on technologies: how long it takes, which part of that it waits, and from which latency on it waits for half of its time.

use crate::client::{self, Runs};
use crate::export::{Export, Lead};
use crate::files;
use crate::latency::{self, Floors};
use crate::queued;
use crate::supervisor;
use crate::zram::Zram;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, ensure};
use pm_bench::nvm::cell::{Cell, Point, Spread, digits};
use pm_bench::nvm::device::{Counts, Device, Kind};
use pm_bench::nvm::figures::{Layer, PAGE_BYTES};
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::page;
use pm_bench::nvm::spin::{Delay, Delays};
use pm_bench::nvm::technology::Technology;
use pm_bench::{Cli, Pair, Report, median};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use xtask::process;

/// Of the file system. Only what is written takes memory.
const DEVICE_BYTES: u64 = 4 << 30;
/// A long request, from which the time of each KiB follows.
const LONG_KIB: u32 = 128;
/// The longest that the kernel makes for zram and a file system.
const MOST_KIB: u64 = 1024;
/// A difference below this part of the time is noise.
const LEAST_DIFFERENCE: f64 = 0.02;

/// What is run: as the shell's input, in the root directory of a new file system.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) command: String,
    /// Runs before each run, without delay and not measured.
    pub(crate) prepare: Option<String>,
}

/// Runs of a program on one technology, or without delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) seconds: Vec<f64>,
    /// What they should be, from those without delay and the requests.
    pub(crate) predicted: Vec<f64>,
    counts: Vec<Counts>,
}

/// Runs on some technologies, in their order, and without delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) alone: Times,
    pub(crate) with: Vec<Times>,
}

/// Where it runs, and with what delay.
struct Place<'a> {
    journal: &'a mut Journal,
    device: &'a Path,
    program: &'a Program,
    round_count: usize,
}

/// Runs the program on each technology, and writes the report.
pub(crate) fn run(cli: &Cli, technologies: &[&Technology], program: &Program) -> Result<ExitCode> {
    let mut journal = supervisor::journal_of_worker()?;
    let mut report = Report::new("nvm-on");
    report.fact("command", program.command.as_str());
    report.fact("file system", "XFS, not in the page cache at the start; the time includes syncing it");
    let runs = Runs { count: cli.round_count(5, 2), time: Duration::from_millis(200) };
    let (short, long): (Vec<&Technology>, Vec<&Technology>) =
        technologies.iter().partition(|technology| latency::can_spin(technology));
    let mut points = Vec::new();
    for (path, technologies) in [(latency::PATH, short), (queued::PATH, long)] {
        if technologies.is_empty() {
            continue;
        }
        let is_on_zram = path == latency::PATH;
        let ran = if is_on_zram {
            on_zram(&mut journal, &technologies, program, runs)?
        } else {
            behind_fuse(&mut journal, &technologies, program, runs)?
        };
        let name = if is_on_zram { "no-delay/zram" } else { "no-delay/fuse" };
        points.push(seconds(name, path, &ran.alone));
        for (technology, times) in technologies.iter().zip(&ran.with) {
            points.extend(evaluated(technology, path, times, &ran.alone, &mut report));
        }
    }
    report.page(page::html("A program on slow and fast memories", &points, &[]));
    report.data("cells", serde_json::to_value(&points).into_diagnostic()?);
    for point in &points {
        let predicted =
            point.asked.map_or_else(String::new, |asked| format!(", predicted {}", digits(asked)));
        report.fact(&point.name, point.with_unit(point.unit) + &predicted);
    }
    cli.finish(&report)
}

/// Runs the program on technologies for which a thread can spin.
pub(crate) fn on_zram(
    journal: &mut Journal,
    technologies: &[&Technology],
    program: &Program,
    runs: Runs,
) -> Result<Ran> {
    let mark = journal.entries().len();
    let zram = Zram::add(journal, DEVICE_BYTES)?;
    client::fill(&zram.device)?;
    let floors = latency::floors(&zram, runs, &mut Vec::new())?;
    let slopes = Slopes::of_zram(&zram.device, floors, runs)?;
    let device = zram.device.clone();
    let mut place = Place { journal: &mut *journal, device: &device, program, round_count: runs.count };
    let counts = || client::counts(&device);
    let alone = place.times(|| Ok(()), counts)?;
    let mut with = Vec::new();
    for technology in technologies {
        let times = place.times(|| zram.delay(|device| slopes.delays(technology, floors, device)), counts)?;
        let delays = slopes.delays(technology, floors, 0);
        with.push(times.predicted_by(&alone, |counts| Slopes::spun_s(delays, counts)));
    }
    journal.undo_to(mark).into_diagnostic()?;
    Ok(Ran { alone, with })
}

/// Runs the program on other technologies.
pub(crate) fn behind_fuse(
    journal: &mut Journal,
    technologies: &[&Technology],
    program: &Program,
    runs: Runs,
) -> Result<Ran> {
    let mark = journal.entries().len();
    let export = Export::add(journal, DEVICE_BYTES)?;
    let device = export.device.clone();
    let mut place = Place { journal: &mut *journal, device: &device, program, round_count: runs.count };
    let plain = || export.serve_as(None, Lead::default());
    let counts = || Ok(export.counts());
    let alone = place.times(|| Ok(()), counts)?;
    let mut with = Vec::new();
    for technology in technologies {
        let times = place.times(
            || {
                // The path's own time, some 25 us, is not subtracted: these technologies are slower than 1 ms.
                export.serve_as(Some(technology), Lead::default());
                Ok(Plain(&plain))
            },
            counts,
        )?;
        with.push(times.predicted_by(&alone, |counts| counts.busy_s));
    }
    journal.undo_to(mark).into_diagnostic()?;
    Ok(Ran { alone, with })
}

/// Ends the delay when the delay's value is dropped.
struct Plain<'a>(&'a dyn Fn());

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What each KiB more of a request takes on zram itself, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slopes {
    read: f64,
    write: f64,
}

impl Slopes {
    pub(crate) fn of_zram(device: &Path, floors: Floors, runs: Runs) -> Result<Self> {
        let slope = |kind| {
            let long: Result<Vec<f64>> =
                (0..runs.count).map(|_| client::latency_us_of(device, kind, LONG_KIB, runs.time)).collect();
            Ok::<_, miette::Report>((median(long?) - floors.of(kind)) * 1e3 / f64::from(LONG_KIB - 4))
        };
        Ok(Self { read: slope(Kind::Read)?, write: slope(Kind::Write)? })
    }

    /// The delays with which requests of 4 KiB, and of more, take as long as the technology's; none where zram takes longer.
    pub(crate) fn delays(self, technology: &Technology, floors: Floors, device: u32) -> Delays {
        let delay = |kind, slope: f64| {
            let ns = |kib: u32| Device::latency_ns(technology, kind, u64::from(kib) << 10) as f64;
            let each = ((ns(LONG_KIB) - ns(4)) / f64::from(LONG_KIB - 4) - slope).max(0.0);
            let base = (ns(4) - floors.of(kind) * 1e3 - 4.0 * each).max(0.0);
            let whole =
                |ns: f64| u32::try_from(Duration::from_secs_f64(ns / 1e9).as_nanos()).unwrap_or(u32::MAX);
            Delay { base_ns: whole(base), kib_ns: whole(each) }
        };
        let (read, write) = (delay(Kind::Read, self.read), delay(Kind::Write, self.write));
        let longest = |delay: Delay| u64::from(delay.base_ns) + u64::from(delay.kib_ns) * MOST_KIB;
        Delays { device, read, write, longest_ns: longest(read).max(longest(write)) }
    }
}

impl Slopes {
    /// The time, in seconds, for which these requests are delayed.
    pub(crate) fn spun_s(delays: Delays, counts: Counts) -> f64 {
        let of = |requests: f64, kib: f64, delay: Delay| {
            requests * f64::from(delay.base_ns) + kib * f64::from(delay.kib_ns)
        };
        let reads = of(counts.reads, counts.read_kib, delays.read);
        (reads + of(counts.writes, counts.written_kib, delays.write)) / 1e9
    }
}

impl Times {
    /// Adds what the times should be: that of the program without delay, and that of the requests.
    fn predicted_by(mut self, alone: &Self, waited_s: impl Fn(Counts) -> f64) -> Self {
        let alone = median(alone.seconds.iter().copied());
        self.predicted = self.counts.iter().map(|counts| alone + waited_s(*counts)).collect();
        self
    }
}

impl Place<'_> {
    /// Runs the program, each time on a new file system, and with the delay that `delay` returns. `counts` has the requests of the device.
    fn times<D>(
        &mut self,
        delay: impl Fn() -> Result<D>,
        counts: impl Fn() -> Result<Counts>,
    ) -> Result<Times> {
        let mut times = Times::default();
        for _ in 0..self.round_count {
            let mark = self.journal.entries().len();
            files::make(Layer::Xfs, self.device)?;
            if let Some(prepare) = &self.program.prepare {
                let at = files::mount(self.journal, Layer::Xfs, self.device)?;
                shell(prepare, &at)?;
                // Mounted again, nothing of it is in the page cache.
                self.journal.undo_to(mark).into_diagnostic()?;
            }
            let at = files::mount(self.journal, Layer::Xfs, self.device)?;
            let delayed = delay()?;
            let before = counts()?;
            let begin = Instant::now();
            shell(&self.program.command, &at)?;
            process::output(Command::new("sync").arg("--file-system").arg(&at))?;
            times.seconds.push(begin.elapsed().as_secs_f64());
            times.counts.push(counts()?.since(before));
            drop(delayed);
            self.journal.undo_to(mark).into_diagnostic()?;
        }
        Ok(times)
    }
}

/// Runs a command in a directory. What it prints goes to standard error, for the output may be JSON.
fn shell(command: &str, at: &Path) -> Result<()> {
    let mut shell = Command::new("sh");
    let status = shell.arg("-c").arg(command).current_dir(at).stdout(std::io::stderr()).status();
    let status = status.into_diagnostic().wrap_err("cannot run sh")?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

fn seconds(name: &str, path: &'static str, times: &Times) -> Point {
    let cell = Cell::Measured(Spread::of(&times.seconds));
    let asked = (!times.predicted.is_empty()).then(|| median(times.predicted.iter().copied()));
    Point { name: format!("{name}/time"), path, unit: "s", asked, floor: None, cell }
}

/// The cells of a technology, and its row.
fn evaluated(
    technology: &Technology,
    path: &'static str,
    times: &Times,
    alone: &Times,
    report: &mut Report,
) -> Vec<Point> {
    let name = &technology.name;
    let pairs = times.seconds.iter().zip(&alone.seconds);
    let pairs = pairs.map(|(with, without)| Pair { ours: 1.0 / with, theirs: 1.0 / without }).collect();
    report.row(format!("on {name}"), "without delay", "runs/s", pairs, None);
    let of = |value: fn(&Counts) -> f64| median(times.counts.iter().map(value));
    let (reads, writes, flushes) =
        (of(|counts| counts.reads), of(|counts| counts.writes), of(|counts| counts.flushes));
    let [with, without] = [times, alone].map(|times| median(times.seconds.iter().copied()));
    let waited = with - without;
    let single = |name: String, unit, value: f64| {
        let cell = Cell::Measured(Spread { median: value, low: value, high: value });
        Point { name, path, unit, asked: None, floor: None, cell }
    };
    let mut points = vec![
        seconds(name, path, times),
        single(format!("{name}/reads"), "requests", reads),
        single(format!("{name}/writes"), "requests", writes),
        single(format!("{name}/flushes"), "requests", flushes),
    ];
    let us = |kind| Device::latency_ns(technology, kind, PAGE_BYTES) as f64 / 1e3;
    let latency = (reads * us(Kind::Read) + writes * us(Kind::Write)) / (reads + writes).max(1.0);
    let waits = format!("{name}/waits");
    let half = format!("{name}/latency-at-which-half-waits");
    if waited > LEAST_DIFFERENCE * with {
        points.push(single(waits, "%", 100.0 * waited / with));
        // The time waited for grows with the latency, and at this one it is as long as the rest.
        points.push(single(half, "us", latency * without / waited));
    } else {
        let why = format!("less than {} % of its time", 100.0 * LEAST_DIFFERENCE);
        let not =
            |name, unit| Point { name, path, unit, asked: None, floor: None, cell: Cell::Not(why.clone()) };
        points.extend([not(waits, "%"), not(half, "us")]);
    }
    points
}
