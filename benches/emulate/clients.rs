//! Clients of a block device whose memory is slower than DRAM by a factor, over NBD: fio, and SQLite on the file that nbdfuse makes of the device.
//!
//! As Fig. 15 of PMBD, whose two clients read mostly (TPC-H: 1.4 times slower with reads 10 times slower) and write mostly (TPC-C: 3.6 times slower).

use miette::{IntoDiagnostic as _, Result};
use pm_bench::fio::{Access, Job};
use pm_bench::{Cli, Disk, Report, Server, Side, rounds};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use xtask::apt::{self, Need};
use xtask::process;

const SIZE_BYTES: u64 = 256 << 20;
const READ_FACTORS: [u32; 4] = [1, 2, 5, 10];
const WRITE_FACTORS: [u32; 4] = [1, 2, 10, 50];
const ROWS: u32 = 200_000;
const TRANSACTIONS: u32 = 1000;

/// Measures, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, pmbd: &Path, report: &mut Report) -> Result<()> {
    apt::ensure(&[
        Need::new("fio", "fio"),
        Need::new("nbdfuse", "libnbd-bin"),
        Need::new("sqlite3", "sqlite3"),
        Need::new("fusermount3", "fuse3"),
        Need::new("nbdcopy", "libnbd-bin"),
    ])?;
    let memory = Path::new("/dev/shm");
    let plain = Disk::serve(pmbd, memory, SIZE_BYTES, &[])?;
    let round_count = cli.round_count(5, 2);
    let runtime = Duration::from_millis(if cli.quick { 300 } else { 1000 });
    let image = database()?;
    for (option, access, factors) in
        [("--rdsx", Access::Read, READ_FACTORS), ("--wrsx", Access::Write, WRITE_FACTORS)]
    {
        for factor in factors {
            let slow = Disk::serve(pmbd, memory, SIZE_BYTES, &[option, &factor.to_string()])?;
            let side = |side| if side == Side::Ours { &slow } else { &plain };
            let job = Job::new(access, 1);
            eprintln!("{option} {factor}: fio");
            let [pairs] = rounds(round_count, |at| {
                Ok([job.done(&side(at).fio(job.arguments(SIZE_BYTES, runtime))?)?.iops])
            })?;
            report.row(format!("{option} {factor}: fio {job}"), "without emulation", "io/s", pairs, None);
            eprintln!("{option} {factor}: SQLite");
            let [pairs] = rounds(round_count, |at| Ok([1.0 / sqlite(side(at), &image, access)?]))?;
            let what = if access == Access::Read { "scans" } else { "commits" };
            report.row(
                format!("{option} {factor}: SQLite {what}"),
                "without emulation",
                "runs/s",
                pairs,
                None,
            );
        }
    }
    Ok(())
}

/// A database of [`ROWS`] rows, as bytes.
fn database() -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").into_diagnostic()?;
    let text = format!(
        "CREATE TABLE t(k INTEGER PRIMARY KEY, v INTEGER, pad TEXT);
         INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
         SELECT i, i * 7919 % 1000, hex(zeroblob(100)) FROM n;"
    );
    process::output(Command::new("sqlite3").arg(file.path()).arg(text))?;
    Ok(file)
}

/// Copies the database to the disk, and runs statements that read or write mostly. Returns the seconds that they take.
fn sqlite(disk: &Disk, image: &tempfile::NamedTempFile, access: Access) -> Result<f64> {
    process::output(Command::new("nbdcopy").arg(image.path()).arg(disk.uri()))?;
    let mount = Mount::new(disk.directory().join("mount"), disk.uri())?;
    let statements = match access {
        // Of each page of the table once, and of few pages of SQLite's cache.
        Access::Read => "SELECT sum(v), max(pad) FROM t;".repeat(3),
        Access::Write => (0..TRANSACTIONS)
            .map(|number| format!("UPDATE t SET v = v + 1 WHERE k = {};", number * 7919 % ROWS + 1))
            .collect(),
    };
    // There is no place for a journal beside the device, and a crash of SQLite is not part of the measurement.
    let text = format!(
        "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = FULL; PRAGMA cache_size = 100; {statements}"
    );
    let begin = Instant::now();
    process::output(Command::new("sqlite3").arg(mount.file()).arg(text))?;
    Ok(begin.elapsed().as_secs_f64())
}

/// The file that nbdfuse makes of a disk.
struct Mount {
    _nbdfuse: Server,
    directory: PathBuf,
}

impl Mount {
    fn new(directory: PathBuf, uri: &str) -> Result<Self> {
        std::fs::create_dir_all(&directory).into_diagnostic()?;
        let mut nbdfuse = Server::start(Command::new("nbdfuse").arg(&directory).arg(uri))?;
        let file = directory.join("nbd");
        nbdfuse.wait_until(|| file.exists())?;
        Ok(Self { _nbdfuse: nbdfuse, directory })
    }

    fn file(&self) -> PathBuf {
        self.directory.join("nbd")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = process::output(Command::new("fusermount3").arg("-u").arg(&self.directory)) {
            eprintln!("{} stays mounted: {error:?}", self.directory.display());
        }
    }
}
