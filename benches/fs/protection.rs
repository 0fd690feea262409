//! The price of protection: the same calls on a protected file system and on one that is not, in process and by FUSE.

use super::programs::Mount;
use miette::{IntoDiagnostic as _, Result, ensure};
use pm_bench::{Pair, Report, rounds_of};
use pm_core::protection::{Method, Protected, Protection, ProtectionError};
use pm_core::{Pmem, Region, RegionOptions};
use pm_fs::{Fs, FsOptions, NewFile};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use xtask::{apt, cargo};

const POOL_BYTES: u64 = 64 << 20;

/// Of each file: it is created, appended to, overwritten, read, renamed, and unlinked.
const CALLS: u64 = 6;

const PAGE: [u8; 4096] = [1; 4096];

/// Adds two rows for each method: calls in process, and by FUSE.
pub(crate) fn add(report: &mut Report, time: Duration, rounds: usize) -> Result<()> {
    let missing = no_key()?;
    let is_had = |method: &Method| *method != Method::Pkey || missing.is_none();
    for method in Method::ALL.into_iter().filter(is_had) {
        let mut changes_per_call = 0.0;
        let measured = rounds_of(rounds, |index| {
            let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
            let path = directory.path().join("disk.pm");
            super::variants::new_fs(directory.path(), POOL_BYTES)?.close().into_diagnostic()?;
            let options = FsOptions::new().region(RegionOptions::new().populate(true));
            if index == 1 {
                return Ok(in_process(&Fs::open(&path, &options).into_diagnostic()?, time)?.0);
            }
            let fs = Fs::open_protected(&path, &options, &Protection::new(method)).into_diagnostic()?;
            let changes = || fs.heap().pool().pmem().windows().change_count();
            let before = changes();
            let (rate, calls) = in_process(&fs, time)?;
            changes_per_call = (changes() - before) as f64 / calls as f64;
            Ok(rate)
        })?;
        add_row(report, &format!("calls on files, {method}"), &measured);
        report.fact(&format!("mprotect calls a call, {method}"), format!("{changes_per_call:.2}"));
    }
    if let Some(why) = &missing {
        report.fact("pkey", format!("skipped: {why}"));
    }
    add_mounted(report, time, rounds, is_had)
}

/// The rows of mounted file systems.
fn add_mounted(
    report: &mut Report,
    time: Duration,
    rounds: usize,
    is_had: impl Fn(&Method) -> bool,
) -> Result<()> {
    if !apt::is_root() {
        report.fact("protection by FUSE", "skipped: mounting needs root");
        return Ok(());
    }
    let pmfs = cargo::build("pmfs", &["--bin", "pmfs", "--release"], "pmfs")?;
    for method in Method::ALL.into_iter().filter(is_had) {
        let measured = rounds_of(rounds, |index| {
            let method = if index == 0 { method } else { Method::None };
            let mounted = Mount::ours(&pmfs, POOL_BYTES, &["--populate", "--protect", method.name()])?;
            by_fuse(mounted.path(), time)
        })?;
        add_row(report, &format!("calls on files by FUSE, {method}"), &measured);
    }
    Ok(())
}

fn add_row(report: &mut Report, name: &str, measured: &[[f64; 2]]) {
    let pairs = measured.iter().map(|[ours, theirs]| Pair { ours: *ours, theirs: *theirs }).collect();
    report.row(name, "unprotected", "calls/s", pairs, None);
}

/// Why this machine has no protection keys.
fn no_key() -> Result<Option<String>> {
    match Protected::new(Region::anonymous(4096).into_diagnostic()?, &Protection::new(Method::Pkey)) {
        Err(error @ ProtectionError::NoKey(_)) => Ok(Some(error.to_string())),
        other => other.map(|_| None).into_diagnostic(),
    }
}

/// The calls a second, and their number, of the same six calls on one file after the other, for this time.
fn rate(time: Duration, mut file: impl FnMut(u64) -> Result<()>) -> Result<(f64, u64)> {
    let begin = Instant::now();
    let mut number = 0;
    while begin.elapsed() < time {
        file(number)?;
        number += 1;
    }
    Ok(((CALLS * number) as f64 / begin.elapsed().as_secs_f64(), CALLS * number))
}

fn in_process<P: Pmem>(fs: &Fs<P>, time: Duration) -> Result<(f64, u64)> {
    fs.prepare().into_diagnostic()?;
    let (dir, new) = (fs.root(), NewFile { mode: 0o644, ..NewFile::default() });
    let mut found = [0; 4096];
    rate(time, |number| {
        let (old, renamed) = (super::old_name(number % 100), super::new_name(number % 100));
        let file = dir.create(&old, new).into_diagnostic()?;
        file.append(&PAGE).into_diagnostic()?;
        file.write_at(0, &PAGE).into_diagnostic()?;
        let len = file.read_at(0, &mut found).into_diagnostic()?;
        ensure!(len == PAGE.len() && found == PAGE, "a page is lost");
        dir.rename(&old, &dir, &renamed).into_diagnostic()?;
        dir.unlink(&renamed).into_diagnostic()
    })
}

fn by_fuse(directory: &Path, time: Duration) -> Result<f64> {
    let mut found = [0; 4096];
    let rate = rate(time, |number| {
        let (old, renamed) = (super::old_name(number % 100), super::new_name(number % 100));
        let (old, renamed) = (directory.join(old), directory.join(renamed));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&old).into_diagnostic()?;
        file.write_all_at(&PAGE, 0).into_diagnostic()?;
        file.write_all_at(&PAGE, 0).into_diagnostic()?;
        file.read_exact_at(&mut found, 0).into_diagnostic()?;
        ensure!(found == PAGE, "a page is lost");
        fs::rename(&old, &renamed).into_diagnostic()?;
        fs::remove_file(&renamed).into_diagnostic()
    });
    rate.map(|(rate, _)| rate)
}
