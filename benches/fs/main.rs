//! File systems: calls on `pm-fs` in process against the same system calls on tmpfs, by one thread. The rival pays a system call, which is printed too. Then strict
//! files, maps of huge pages, two threads, protections, ext4, opening after a kill, and lookups among many names.

mod ext4;
mod opening;
mod programs;
mod protection;
mod sizes;
mod variants;

use clap::Parser;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, ensure};
use pm_bench::{Cli, Pair, Report, rounds_of};
use pm_core::RegionOptions;
use pm_fs::{Fs, FsOptions, Handle, NewFile};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// pm-fs in process against tmpfs.
#[derive(Debug, Parser)]
#[command(name = "fs", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Only the programs on mounted file systems, against bindfs on ext4; as root.
    #[arg(long)]
    programs: bool,
    /// Only reads and writes of all sizes, against tmpfs.
    #[arg(long)]
    sizes: bool,
    /// Only the price of each protection, against an unprotected file system, in process and by FUSE.
    #[arg(long)]
    protection: bool,
}

impl Options {
    /// The time of each measurement of a protection.
    fn protection_time(&self) -> Duration {
        Duration::from_millis(if self.cli.quick { 100 } else { 1000 })
    }
}

/// The calls, and how much faster ours are to be.
const CALLS: [(&str, f64); 8] = [
    ("create and close", 4.0),
    ("stat", 4.0),
    ("rename", 4.0),
    ("append 64 B", 1.2),
    ("append 4 KiB", 2.0),
    ("overwrite 4 KiB at random", 1.6),
    ("read 4 KiB at random", 1.2),
    ("unlink", 4.0),
];

/// The pages of the file that is read and overwritten.
const PAGES: u64 = 16_384;

type Rates = [f64; CALLS.len()];

fn main() -> Result<ExitCode> {
    opening::fill_if_asked()?;
    let options = Options::parse();
    if options.programs {
        let mut report = Report::new("fs-programs");
        programs::add(&mut report, options.cli.round_count(5, 2))?;
        return options.cli.finish(&report);
    }
    if options.sizes {
        let mut report = Report::new("fs-sizes");
        sizes::add(&mut report, options.cli.round_count(5, 2))?;
        return options.cli.finish(&report);
    }
    if options.protection {
        let mut report = Report::new("fs-protection");
        protection::add(&mut report, options.protection_time(), options.cli.round_count(5, 2))?;
        return options.cli.finish(&report);
    }
    let count = if options.cli.quick { 10_000 } else { 100_000 };
    let mut report = Report::new("fs");
    report.fact("files", count);
    report.fact("system call", format!("{:.0} ns", system_call_ns()));
    variants::add_hardware(&mut report)?;
    let rounds = options.cli.round_count(5, 2);
    let measured: Vec<[Rates; 2]> = rounds_of(rounds, |index| {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        if index == 0 { ours(directory.path(), count) } else { tmpfs(directory.path(), count) }
    })?;
    for (call, (name, goal)) in CALLS.into_iter().enumerate() {
        let pair = |[ours, theirs]: &[Rates; 2]| Pair { ours: ours[call], theirs: theirs[call] };
        report.row(name, "tmpfs", "calls/s", measured.iter().map(pair).collect(), Some(goal));
    }
    variants::add_strict(&mut report, count / 5, rounds)?;
    variants::add_maps(&mut report, count * 20, rounds)?;
    variants::add_threads(&mut report, count, rounds)?;
    protection::add(&mut report, options.protection_time(), rounds)?;
    ext4::add_appends(&mut report, count / 20, rounds)?;
    let files = if options.cli.quick { 100_000 } else { 1_000_000 };
    opening::add(&mut report, files, options.cli.round_count(3, 1))?;
    opening::add_lookups(&mut report, files)?;
    options.cli.finish(&report)
}

/// Runs a program, and shows its messages if it fails.
fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.into_diagnostic().wrap_err_with(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The time of a system call that does nothing.
fn system_call_ns() -> f64 {
    let begin = Instant::now();
    (0..100_000).for_each(|_| _ = std::hint::black_box(rustix::process::getppid()));
    begin.elapsed().as_secs_f64() * 1e4
}

/// The calls a second of `count` calls.
fn rate(count: u64, mut call: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    (0..count).try_for_each(&mut call)?;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

fn old_name(number: u64) -> String {
    format!("file {number}")
}

fn new_name(number: u64) -> String {
    format!("renamed {number}")
}

fn ours(directory: &Path, count: u64) -> Result<Rates> {
    let pool_bytes = (PAGES * 4096 + count * 1024) * 8 / 7 + count * 8192 + (64 << 20);
    // A device's pages are there; those of tmpfs would be added by a fault at the first access.
    let options = FsOptions::new().region(RegionOptions::new().populate(true));
    let fs = Fs::create(directory.join("disk.pm"), pool_bytes.next_multiple_of(2 << 20), &options);
    let fs = fs.into_diagnostic()?;
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let dir = fs.root().mkdir("dir", NewFile { mode: 0o755, ..new }).into_diagnostic()?;
    let open = |name: &str| -> Result<Handle> {
        let file = fs.root().create(name, new).into_diagnostic()?;
        Ok(file)
    };
    let (short, long) = (open("short")?, open("long")?);
    for page in 0..PAGES {
        long.write_at(page * 4096, &[1; 4096]).into_diagnostic()?;
    }
    let grown = open("grown")?;
    let mut random = fastrand::Rng::with_seed(7);
    let mut page = [0; 4096];
    Ok([
        rate(count, |number| dir.create(old_name(number), new).map(drop).into_diagnostic())?,
        rate(count, |number| {
            let attributes = dir.lookup(old_name(number)).and_then(|file| file.attributes());
            ensure!(attributes.into_diagnostic()?.size == 0, "a new file");
            Ok(())
        })?,
        rate(count, |number| dir.rename(old_name(number), &dir, new_name(number)).into_diagnostic())?,
        rate(count, |_| short.append(&[1; 64]).map(drop).into_diagnostic())?,
        rate(count, |_| grown.append(&[1; 4096]).map(drop).into_diagnostic())?,
        rate(count, |_| long.write_at(random.u64(..PAGES) * 4096, &[2; 4096]).map(drop).into_diagnostic())?,
        rate(count, |_| long.read_at(random.u64(..PAGES) * 4096, &mut page).map(drop).into_diagnostic())?,
        rate(count, |number| dir.unlink(new_name(number)).into_diagnostic())?,
    ])
}

fn tmpfs(directory: &Path, count: u64) -> Result<Rates> {
    let dir: PathBuf = directory.join("dir");
    fs::create_dir(&dir).into_diagnostic()?;
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options.read(true).append(name != "long").write(true).create(true);
        options.open(directory.join(name)).into_diagnostic()
    };
    let (short, grown, long): (File, File, File) = (open("short")?, open("grown")?, open("long")?);
    for page in 0..PAGES {
        long.write_all_at(&[1; 4096], page * 4096).into_diagnostic()?;
    }
    let append =
        |mut file: &File, bytes: &[u8]| std::io::Write::write_all(&mut file, bytes).into_diagnostic();
    let mut random = fastrand::Rng::with_seed(7);
    let mut page = [0; 4096];
    Ok([
        rate(count, |number| File::create(dir.join(old_name(number))).map(drop).into_diagnostic())?,
        rate(count, |number| {
            ensure!(fs::metadata(dir.join(old_name(number))).into_diagnostic()?.len() == 0, "a new file");
            Ok(())
        })?,
        rate(count, |number| {
            fs::rename(dir.join(old_name(number)), dir.join(new_name(number))).into_diagnostic()
        })?,
        rate(count, |_| append(&short, &[1; 64]))?,
        rate(count, |_| append(&grown, &[1; 4096]))?,
        rate(count, |_| long.write_all_at(&[2; 4096], random.u64(..PAGES) * 4096).into_diagnostic())?,
        rate(count, |_| long.read_exact_at(&mut page, random.u64(..PAGES) * 4096).into_diagnostic())?,
        rate(count, |number| fs::remove_file(dir.join(new_name(number))).into_diagnostic())?,
    ])
}
