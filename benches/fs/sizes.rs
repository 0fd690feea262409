//! Reads and writes of all sizes, as in Fig. 6 of the paper about PMFS (EuroSys 2014): in order and at random, against tmpfs.

use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Pair, Report, rounds_of};
use pm_fs::NewFile;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const FILE_BYTES: u64 = 128 << 20;

const SIZES: [(&str, usize); 5] =
    [("64 B", 64), ("1 KiB", 1 << 10), ("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

const KINDS: [&str; 4] = ["write in order", "write at random", "read in order", "read at random"];

/// The rates of all kinds and sizes, in MB/s.
type Rates = [[f64; SIZES.len()]; KINDS.len()];

/// Adds a row for each kind and size. None has a goal.
pub(crate) fn add(report: &mut Report, rounds: usize) -> Result<()> {
    let measured: Vec<[Rates; 2]> = rounds_of(rounds, |index| {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        if index == 0 { ours(directory.path()) } else { tmpfs(directory.path()) }
    })?;
    for (kind, kind_name) in KINDS.into_iter().enumerate() {
        for (size, (size_name, _)) in SIZES.into_iter().enumerate() {
            let pair =
                |[ours, theirs]: &[Rates; 2]| Pair { ours: ours[kind][size], theirs: theirs[kind][size] };
            let pairs = measured.iter().map(pair).collect();
            report.row(format!("{kind_name}, {size_name}"), "tmpfs", "MB/s", pairs, None);
        }
    }
    Ok(())
}

fn ours(directory: &Path) -> Result<Rates> {
    let fs = super::variants::new_fs(directory, 2 * FILE_BYTES)?;
    let file = fs.root().create("file", NewFile::default()).into_diagnostic()?;
    measure(
        |at, bytes| file.write_at(at, bytes).map(drop).into_diagnostic(),
        |at, bytes| file.read_at(at, bytes).map(drop).into_diagnostic(),
    )
}

fn tmpfs(directory: &Path) -> Result<Rates> {
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).create_new(true).open(directory.join("file")).into_diagnostic()?;
    measure(
        |at, bytes| file.write_all_at(bytes, at).into_diagnostic(),
        |at, bytes| file.read_exact_at(bytes, at).into_diagnostic(),
    )
}

fn measure(
    write: impl Fn(u64, &[u8]) -> Result<()>,
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<Rates> {
    let mut bytes = vec![1; 1 << 20];
    // All pages are there: the first writes to them are measured elsewhere.
    (0..FILE_BYTES).step_by(1 << 20).try_for_each(|at| write(at, &bytes))?;
    let mut rates = Rates::default();
    for (kind, rates) in rates.iter_mut().enumerate() {
        for ((_, len), rate) in SIZES.into_iter().zip(rates) {
            let mut random = fastrand::Rng::with_seed(7);
            let pieces = FILE_BYTES / len as u64;
            let count = pieces.min(100_000);
            let calls = super::rate(count, |number| {
                let piece = if kind % 2 == 0 { number } else { random.u64(..pieces) };
                let at = piece * len as u64;
                if kind < 2 { write(at, &bytes[..len]) } else { read(at, &mut bytes[..len]) }
            })?;
            *rate = calls * len as f64 / 1e6;
        }
    }
    Ok(rates)
}
