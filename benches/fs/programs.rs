//! Programs on a mounted file system: pmfs against bindfs on ext4, both by FUSE. As root.

use super::ext4::{self, Ext4};
use super::run;
use miette::{IntoDiagnostic as _, Result, ensure, miette};
use pm_bench::{Pair, Report, Server, rounds_of};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;
use xtask::apt::{self, Need};
use xtask::cargo;

const NEEDS: [Need; 6] = [
    Need::new("fusermount3", "fuse3"),
    Need::new("bindfs", "bindfs"),
    ext4::NEED,
    Need::new("postmark", "postmark"),
    Need::new("dbench", "dbench"),
    Need::new("git", "git"),
];

/// The calls that dbench makes, below `/usr`.
const DBENCH_CALLS: &str = "share/dbench/client.txt";

/// Transactions on files of mail.
const POSTMARK: &str =
    "set number 5000\nset transactions 20000\nset subdirectories 50\nset size 500 20000\nset seed 1\n";

const NAMES: [&str; 8] = ["cp", "untar", "find", "grep", "cp -r", "rm -r", "postmark", "dbench"];

/// The goal of each program, and of the geometric mean.
const GOALS: [f64; 2] = [1.0, 1.3];

const BYTES: u64 = 2 << 30;

/// A mounted file system.
pub(crate) struct Mount {
    server: Option<Server>,
    mount: PathBuf,
    /// What is mounted below it.
    below: Option<Ext4>,
    directory: TempDir,
}

impl Drop for Mount {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.mount).stderr(Stdio::null()).status().ok();
        drop(self.server.take());
        drop(self.below.take());
    }
}

impl Mount {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        let mount = directory.path().join("mount");
        fs::create_dir(&mount).into_diagnostic()?;
        Ok(Self { server: None, mount, below: None, directory })
    }

    /// One of ours of this length, mounted with more options.
    pub(crate) fn ours(pmfs: &Path, bytes: u64, options: &[&str]) -> Result<Self> {
        let mut mounted = Self::new()?;
        let pool = mounted.directory.path().join("files.pm");
        run(Command::new(pmfs).arg("mkfs").arg(&pool).args(["--size", &format!("{}M", bytes >> 20)]))?;
        let mut command = Command::new(pmfs);
        command.args(["mount", "-f"]).args(options).arg(&pool).arg(&mounted.mount);
        let mut server = Server::start(&mut command)?;
        server.wait_for_line("is mounted")?;
        mounted.server = Some(server);
        Ok(mounted)
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }

    /// bindfs shows a directory of an ext4 in memory.
    fn bindfs() -> Result<Self> {
        let mut mounted = Self::new()?;
        let below = &mounted.below.insert(Ext4::new(BYTES)?).mount;
        let server = Server::start(Command::new("bindfs").arg("-f").arg(below).arg(&mounted.mount))?;
        let mount = mounted.mount.clone();
        mounted.server.insert(server).wait_until(|| {
            fs::read_to_string("/proc/mounts")
                .is_ok_and(|all| all.contains(&format!(" {} ", mount.display())))
        })?;
        Ok(mounted)
    }
}

/// Runs a script in a directory, and returns how often it would run in a second.
fn rate(directory: &Path, script: &str) -> Result<f64> {
    let begin = Instant::now();
    run(Command::new("sh").arg("-ec").arg(script).current_dir(directory))?;
    Ok(1.0 / begin.elapsed().as_secs_f64())
}

fn postmark(directory: &Path) -> Result<f64> {
    fs::create_dir(directory).into_diagnostic()?;
    let begin = Instant::now();
    let mut child =
        Command::new("postmark").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().into_diagnostic()?;
    let script = format!("set location {}\n{POSTMARK}run\nquit\n", directory.display());
    child.stdin.take().expect("it is piped").write_all(script.as_bytes()).into_diagnostic()?;
    let output = child.wait_with_output().into_diagnostic()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && said.contains("per second"), "postmark: {said}");
    Ok(1.0 / begin.elapsed().as_secs_f64())
}

/// The throughput in MB/s.
fn dbench(directory: &Path) -> Result<f64> {
    let calls = apt::find(DBENCH_CALLS).ok_or_else(|| miette!("/usr/{DBENCH_CALLS} is missing"))?;
    let mut command = Command::new("dbench");
    let output = command.arg("-c").arg(calls).arg("-D").arg(directory).args(["-t", "5", "2"]).output();
    let said = String::from_utf8_lossy(&output.into_diagnostic()?.stdout).into_owned();
    let rate = said.lines().find_map(|line| line.strip_prefix("Throughput "));
    let rate = rate.and_then(|rate| rate.split(' ').next()).ok_or_else(|| miette!("dbench: {said}"))?;
    rate.parse().into_diagnostic()
}

/// Adds a row for each program to the report, and the geometric mean of the ratios.
pub(crate) fn add(report: &mut Report, rounds: usize) -> Result<()> {
    ensure!(apt::is_root(), "mounting ext4 needs root");
    apt::ensure(&NEEDS)?;
    let pmfs = cargo::build("pmfs", &["--bin", "pmfs", "--release"], "pmfs")?;
    let sources = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let tar = sources.path().join("sources.tar");
    run(Command::new("git").args(["archive", "--output"]).arg(&tar).arg("HEAD").current_dir(cargo::root()))?;
    let tar = tar.display();
    let measured = rounds_of(rounds, |index| {
        let mounted = if index == 0 { Mount::ours(&pmfs, BYTES, &[])? } else { Mount::bindfs()? };
        let at = &mounted.mount;
        Ok([
            rate(at, &format!("for copy in 1 2 3 4 5; do cp {tar} copy; done"))?,
            rate(at, &format!("mkdir tree; tar -xf {tar} -C tree"))?,
            rate(at, "for time in 1 2 3 4 5; do find tree -newer copy -size +1k >/dev/null; done")?,
            rate(at, "grep -r durable tree >/dev/null")?,
            rate(at, "cp -r tree second")?,
            rate(at, "rm -r tree second")?,
            postmark(&at.join("postmark"))?,
            dbench(at)?,
        ])
    })?;
    let mut mean = 1.0;
    for (program, name) in NAMES.into_iter().enumerate() {
        let pair = |[ours, theirs]: &[[f64; 8]; 2]| Pair { ours: ours[program], theirs: theirs[program] };
        let pairs: Vec<Pair> = measured.iter().map(pair).collect();
        mean *= pm_bench::median(pairs.iter().map(|pair| pair.ratio()));
        let unit = if name == "dbench" { "MB/s" } else { "runs/s" };
        report.row(format!("{name}, by FUSE"), "bindfs on ext4", unit, pairs, Some(GOALS[0]));
    }
    let mean = mean.powf(1.0 / NAMES.len() as f64);
    report.fact("geometric mean of the programs' ratios", format!("{mean:.2} ({})", GOALS[1]));
    Ok(())
}
