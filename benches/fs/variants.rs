//! Ours against ours: strict files against others, and two threads against one. And what the hardware needs.

use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Pair, Report, rounds_of};
use pm_core::{Pmem as _, RegionOptions};
use pm_fs::{Fs, FsOptions, Handle, NewFile};
use std::process::Command;
use std::time::Instant;

const FILE_BYTES: u64 = 64 << 20;
const WRITE_BYTES: usize = 64 << 10;
const MAPPED_BYTES: u64 = 128 << 20;

pub(crate) fn new_fs(directory: &std::path::Path, pool_bytes: u64) -> Result<Fs> {
    let options = FsOptions::new().region(RegionOptions::new().populate(true));
    Fs::create(directory.join("disk.pm"), pool_bytes, &options).into_diagnostic()
}

/// Overwrites of 64 KiB in strict files against others.
pub(crate) fn add_strict(report: &mut Report, writes: u64, rounds: usize) -> Result<()> {
    let measured = rounds_of(rounds, |index| {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        let fs = new_fs(directory.path(), 256 << 20)?;
        let file = fs.root().create("file", NewFile::default()).into_diagnostic()?;
        let bytes = vec![1; WRITE_BYTES];
        for at in (0..FILE_BYTES).step_by(WRITE_BYTES) {
            file.write_at(at, &bytes).into_diagnostic()?;
        }
        file.set_strict(index == 0).into_diagnostic()?;
        let mut random = fastrand::Rng::with_seed(7);
        super::rate(writes, |_| {
            let at = random.u64(..FILE_BYTES / WRITE_BYTES as u64) * WRITE_BYTES as u64;
            file.write_at(at, &bytes).map(drop).into_diagnostic()
        })
    })?;
    let pairs = measured.iter().map(|[ours, theirs]| Pair { ours: *ours, theirs: *theirs }).collect();
    report.row("overwrite 64 KiB, strict", "relaxed", "calls/s", pairs, Some(0.8));
    Ok(())
}

/// Loads of 64 bytes at random from a map of huge pages, against one of single pages. On a tmpfs of huge pages, if this process may mount one.
pub(crate) fn add_maps(report: &mut Report, loads: u64, rounds: usize) -> Result<()> {
    let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let mut mount = Command::new("mount");
    let mount = mount.args(["-t", "tmpfs", "-o", "huge=always,size=1G", "none"]).arg(directory.path());
    let is_huge = mount.output().is_ok_and(|output| output.status.success());
    report.fact("the tmpfs of the maps has huge pages", if is_huge { "yes" } else { "no" });
    let measured = rounds_of(rounds, |index| {
        let directory = tempfile::tempdir_in(directory.path()).into_diagnostic()?;
        let fs = new_fs(directory.path(), 4 * MAPPED_BYTES)?;
        let file = fs.root().create("file", NewFile::default()).into_diagnostic()?;
        file.truncate(MAPPED_BYTES).into_diagnostic()?;
        let mut random = fastrand::Rng::with_seed(7);
        if index == 1 {
            // In this order, so that they are nowhere adjacent.
            let mut pages: Vec<u64> = (0..MAPPED_BYTES / 4096).collect();
            random.shuffle(&mut pages);
            pages
                .into_iter()
                .try_for_each(|page| file.write_at(page * 4096, &[1]).map(drop))
                .into_diagnostic()?;
        }
        let map = file.map(0, MAPPED_BYTES).into_diagnostic()?;
        let mut line = [0; 64];
        super::rate(loads, |_| map.load(random.u64(..MAPPED_BYTES / 64) * 64, &mut line).into_diagnostic())
    });
    if is_huge {
        super::run(Command::new("umount").arg("-l").arg(directory.path()))?;
    }
    let pairs = measured?.iter().map(|[ours, theirs]| Pair { ours: *ours, theirs: *theirs }).collect();
    report.row("load 64 B from a map of 2 MiB pages", "4 KiB pages", "calls/s", pairs, Some(1.3));
    Ok(())
}

/// Files created in two directories by two threads against one.
pub(crate) fn add_threads(report: &mut Report, count: u64, rounds: usize) -> Result<()> {
    let measured = rounds_of(rounds, |index| {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        let fs = new_fs(directory.path(), (count * 16 * 1024 + (64 << 20)).next_multiple_of(2 << 20))?;
        let threads = if index == 0 { 2 } else { 1 };
        let dirs = (0..threads).map(|number| fs.root().mkdir(format!("dir {number}"), NewFile::default()));
        let dirs: Vec<Handle> = dirs.collect::<Result<_, _>>().into_diagnostic()?;
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let create = |dir: &Handle| {
                (0..count)
                    .try_for_each(|number| dir.create(super::old_name(number), NewFile::default()).map(drop))
            };
            let started: Vec<_> = dirs.iter().map(|dir| scope.spawn(move || create(dir))).collect();
            started.into_iter().try_for_each(|thread| thread.join().expect("no call panics"))
        })
        .into_diagnostic()?;
        Ok((threads * count) as f64 / begin.elapsed().as_secs_f64())
    })?;
    let pairs = measured.iter().map(|[ours, theirs]| Pair { ours: *ours, theirs: *theirs }).collect();
    report.row("create in two directories, two threads", "one thread", "calls/s", pairs, Some(1.6));
    Ok(())
}

/// What a call cannot be faster than: storing and fencing a line, and a page.
pub(crate) fn add_hardware(report: &mut Report) -> Result<()> {
    let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let path = directory.path().join("region");
    let bytes = 256_u64 << 20;
    let region = RegionOptions::new().populate(true).create(&path, bytes).into_diagnostic()?;
    let ns = |len: usize| -> Result<f64> {
        let (data, mut random, count) = (vec![1; len], fastrand::Rng::with_seed(7), 200_000);
        let begin = Instant::now();
        for _ in 0..count {
            region.store_nt(random.u64(..bytes / 4096) * 4096, &data);
            region.fence().into_diagnostic()?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e9 / f64::from(count))
    };
    report.fact(
        "stored around the cache and fenced",
        format!("64 B {:.0} ns, 4 KiB {:.0} ns", ns(64)?, ns(4096)?),
    );
    Ok(())
}
