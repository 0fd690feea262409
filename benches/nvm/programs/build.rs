//! Build: a part of Linux, compiled on each technology.

use crate::client::Runs;
use crate::latency;
use crate::on::{self, Program, Ran, Times};
use crate::queued;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_bench::nvm::cell::{Cell, Point, Spread};
use pm_bench::nvm::figures;
use pm_bench::nvm::journal::Journal;
use pm_bench::nvm::technology::Technology;
use pm_bench::{Pair, Report, median};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtask::apt::{self, Need};
use xtask::{cargo, process};

const NEEDS: [Need; 8] = [
    Need::new("cc", "gcc"),
    Need::new("make", "make"),
    Need::new("flex", "flex"),
    Need::new("bison", "bison"),
    Need::new("bc", "bc"),
    Need::new("tar", "tar"),
    Need::new("xz", "xz-utils"),
    Need::new("dpkg", "dpkg"),
];
/// Debian's sources of Linux.
const PACKAGE: &str = "linux-source-6.12";
/// What compiling the parts below needs of them: whole directories, and what describes the others.
const MEMBERS: [&str; 13] = [
    "Makefile",
    "Kbuild",
    "Kconfig",
    "COPYING",
    "arch/x86",
    "include",
    "init",
    "kernel",
    "lib",
    "mm",
    "scripts",
    "tools/include",
    "usr",
];
const DESCRIPTIONS: [&str; 2] = ["*/Kconfig*", "*/Makefile"];
/// A part of the kernel that takes some ten seconds on two cores, and one that takes three.
const PARTS: [&str; 2] = ["lib/", "kernel/time/"];
const GOAL: f64 = 0.85;

/// Why it cannot be run, if so. The sources are downloaded, if they are not there.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the sources that are unpacked are those for x86_64".into());
    }
    prepared().err().map(|error| format!("there are no sources to compile: {error}"))
}

/// Measures the time on these technologies, and adds rows of measured against predicted times to the report.
pub(crate) fn build(
    journal: &mut Journal,
    technologies: &[&Technology],
    runs: Runs,
    is_quick: bool,
    report: &mut Report,
) -> Result<Vec<Point>> {
    let sources = prepared()?;
    let part = PARTS[usize::from(is_quick)];
    report.fact("what Build compiles", format!("{part} of {PACKAGE}, tinyconfig, two jobs"));
    let program = Program {
        command: format!("make --quiet --jobs=2 {part}"),
        prepare: Some(format!("cp --archive '{}/.' .", sources.display())),
    };
    let runs = Runs { count: 1, ..runs };
    eprintln!("Build: {} technologies", technologies.len());
    let (short, long): (Vec<&Technology>, Vec<&Technology>) =
        technologies.iter().partition(|technology| latency::can_spin(technology));
    let mut points = evaluated(
        ("no-delay", latency::PATH),
        &short,
        &on::on_zram(journal, &short, &program, runs)?,
        report,
    );
    if !long.is_empty() {
        let ran = on::behind_fuse(journal, &long, &program, runs)?;
        points.extend(evaluated(("no-delay-fuse", queued::PATH), &long, &ran, report));
    }
    Ok(points)
}

/// The cells of these technologies, and their rows.
fn evaluated(
    (alone, path): (&str, &'static str),
    technologies: &[&Technology],
    ran: &Ran,
    report: &mut Report,
) -> Vec<Point> {
    let mut points = vec![point(alone, path, &ran.alone)];
    for (technology, times) in technologies.iter().zip(&ran.with) {
        let point = point(&technology.name, path, times);
        let pairs = times.seconds.iter().zip(&times.predicted);
        let pairs = pairs.map(|(got, asked)| Pair { ours: 1.0 - (got / asked - 1.0).abs(), theirs: 1.0 });
        let label = format!("{}: {}", point.name, point.with_unit("s"));
        let asked = format!("{:.2} s from its requests", point.asked.unwrap_or(f64::NAN));
        report.row(label, asked, "", pairs.collect(), Some(GOAL));
        points.push(point);
    }
    points
}

fn point(technology: &str, path: &'static str, times: &Times) -> Point {
    let name = figures::files("build", technology);
    let asked = (!times.predicted.is_empty()).then(|| median(times.predicted.iter().copied()));
    let cell = Cell::Measured(Spread::of(&times.seconds));
    Point { name, path, unit: "s", asked, floor: None, cell }
}

/// The configured sources, which are downloaded and unpacked once.
fn prepared() -> Result<PathBuf> {
    apt::ensure(&NEEDS)?;
    let directory = cargo::root().join("target/bench-sources");
    let sources = directory.join(PACKAGE);
    if sources.exists() {
        return Ok(sources);
    }
    // That of a killed run is not complete.
    let work = directory.join("unfinished");
    if work.exists() {
        fs::remove_dir_all(&work).into_diagnostic().wrap_err_with(|| work.display().to_string())?;
    }
    fs::create_dir_all(&work).into_diagnostic().wrap_err_with(|| work.display().to_string())?;
    eprintln!("fetching {PACKAGE} (about 150 MB)");
    if download(&work).is_err() {
        // The lists may be out of date.
        apt::update()?;
        download(&work)?;
    }
    let package = with_extension(&work, "deb")?;
    process::output(Command::new("dpkg").arg("-x").arg(package).arg(&work))?;
    let archive = with_extension(&work.join("usr/src"), "xz")?;
    let tree = work.join("tree");
    fs::create_dir(&tree).into_diagnostic()?;
    eprintln!("unpacking {PACKAGE}");
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(&tree).args(["--strip-components=1", "--wildcards"]);
    let below = |member: &str| format!("{PACKAGE}/{member}");
    tar.arg("--no-wildcards-match-slash").args(MEMBERS.map(below));
    process::output(tar.arg("--wildcards-match-slash").args(DESCRIPTIONS.map(below)))?;
    let make = |target| {
        let mut make = Command::new("make");
        process::output(make.args(["--quiet", "--jobs=2", target]).current_dir(&tree))
    };
    make("tinyconfig")?;
    make("prepare")?;
    fs::rename(&tree, &sources).into_diagnostic()?;
    fs::remove_dir_all(&work).into_diagnostic()?;
    Ok(sources)
}

fn download(directory: &Path) -> Result<()> {
    let mut apt_get = Command::new("apt-get");
    apt_get.args(["download", "--quiet", PACKAGE]).current_dir(directory).stdin(Stdio::null());
    process::output(&mut apt_get).map(drop)
}

/// The file with this extension.
fn with_extension(directory: &Path, extension: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(directory).into_diagnostic().wrap_err_with(|| directory.display().to_string())?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let found = paths.find(|path| path.extension().is_some_and(|of| of == extension));
    found.ok_or_else(|| miette!("{} has no file .{extension}", directory.display()))
}
