//! Opening a file system whose process was killed: how long it takes until the first file is read, and until the first one is created. And the memory for files that
//! are not open.

use miette::{Context as _, IntoDiagnostic as _, Result, ensure};
use pm_bench::{Report, median};
use pm_fs::{Fs, FsOptions, NewFile};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable for the process that fills a file system and is killed: the number of files. The pool is its first argument.
const FILL: &str = "PM_BENCH_FS_FILL";

/// The files of a directory.
const DIR_FILES: u64 = 1000;

/// In the process that is to fill a file system: fills it, prints the bytes of memory that this has taken, and ends as if it were killed.
pub(crate) fn fill_if_asked() -> Result<()> {
    let Some(count) = std::env::var(FILL).ok().and_then(|count| count.parse::<u64>().ok()) else {
        return Ok(());
    };
    let path = std::env::args_os().nth(1).wrap_err("no file")?;
    let pool_bytes = (count * 5120 + (64 << 20)).next_multiple_of(2 << 20);
    let fs = Fs::create(path, pool_bytes, &FsOptions::new()).into_diagnostic()?;
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let before = anonymous_bytes()?;
    for number in 0..count {
        let (dir, file) = (number / DIR_FILES, number % DIR_FILES);
        let name = format!("dir {dir}");
        if file == 0 {
            fs.root().mkdir(&name, NewFile { mode: 0o755, ..new }).into_diagnostic()?;
        }
        let created = fs.lookup(&name).and_then(|dir| dir.create(format!("file {file}"), new));
        let created = created.into_diagnostic()?;
        if number % 4 == 0 {
            created.append(b"contents").into_diagnostic()?;
        }
    }
    println!("{}", anonymous_bytes()?.saturating_sub(before));
    std::process::abort();
}

/// The memory of this process that is no file's.
fn anonymous_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").into_diagnostic()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).wrap_err("no RssAnon")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().into_diagnostic()?;
    Ok(kib << 10)
}

/// Fills a file system in a process that is killed, opens it, and adds the times and the memory to the report.
pub(crate) fn add(report: &mut Report, count: u64, rounds: usize) -> Result<()> {
    let mut times = Vec::new();
    let mut memory = 0;
    for _ in 0..rounds {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        let path = directory.path().join("killed");
        let mut command = Command::new(std::env::current_exe().into_diagnostic()?);
        let output = command.arg(&path).env(FILL, count.to_string()).stderr(Stdio::inherit()).output();
        let output = output.into_diagnostic()?;
        ensure!(output.status.code().is_none(), "the process that fills a file system failed");
        memory = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().into_diagnostic()? / count;
        times.push(open(&path, count)?);
    }
    let ms = |part: usize| median(times.iter().map(|times| 1e3 * times[part].as_secs_f64()));
    report.fact(
        &format!("open after a kill, {count} files"),
        format!("{:.2} ms until the first read (10), {:.0} until the first create (1000)", ms(0), ms(1)),
    );
    report.fact("memory for a file that is not open", format!("{memory} B (64)"));
    Ok(())
}

/// The times until a file is read, and until one is created.
fn open(path: &Path, count: u64) -> Result<[Duration; 2]> {
    let begin = Instant::now();
    let fs = Fs::open(path, &FsOptions::new()).into_diagnostic()?;
    let middle = count / DIR_FILES / 2;
    let file = fs.lookup(format!("dir {middle}/file 8")).into_diagnostic()?;
    let mut found = [0; 8];
    ensure!(file.read_at(0, &mut found).into_diagnostic()? == 8 && &found == b"contents", "a file is lost");
    let read = begin.elapsed();
    fs.root().create("new", NewFile::default()).into_diagnostic()?;
    Ok([read, begin.elapsed()])
}

/// Adds the times of lookups among many names of one directory to the report.
pub(crate) fn add_lookups(report: &mut Report, count: u64) -> Result<()> {
    let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let path = directory.path().join("names");
    let fs = Fs::create(&path, (count * 3072 + (64 << 20)).next_multiple_of(2 << 20), &FsOptions::new());
    let fs = fs.into_diagnostic()?;
    let name = |number: u64| format!("file {number}");
    for number in 0..count {
        fs.root().create(name(number), NewFile::default()).into_diagnostic()?;
    }
    fs.close().into_diagnostic()?;
    let fs = Fs::open(&path, &FsOptions::new()).into_diagnostic()?;
    fs.prepare().into_diagnostic()?;
    let root = fs.root();
    let begin = Instant::now();
    root.lookup(name(count / 2)).into_diagnostic()?;
    let first = begin.elapsed();
    let mut random = fastrand::Rng::with_seed(7);
    let names: Vec<String> = (0..100_000).map(|_| name(random.u64(..count))).collect();
    let begin = Instant::now();
    for name in &names {
        root.lookup(name).into_diagnostic()?;
    }
    let each = begin.elapsed().as_secs_f64() * 1e9 / names.len() as f64;
    report.fact(
        &format!("lookup among {count} names"),
        format!("{each:.0} ns (300), the first one {:.0} ms (60)", 1e3 * first.as_secs_f64()),
    );
    Ok(())
}
