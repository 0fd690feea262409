//! ext4 in memory, on a loop device: appends with fdatasync(2), which are as durable as ours. As root.

use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Pair, Report, rounds_of};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use xtask::apt::{self, Need};

pub(crate) const NEED: Need = Need::new("mke2fs", "e2fsprogs");

/// A mounted ext4.
pub(crate) struct Ext4 {
    pub(crate) mount: PathBuf,
    _directory: TempDir,
}

impl Ext4 {
    /// One of this length, in a file of tmpfs.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        let (disk, mount) = (directory.path().join("disk"), directory.path().join("ext4"));
        File::create(&disk).and_then(|file| file.set_len(bytes)).into_diagnostic()?;
        super::run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&disk))?;
        fs::create_dir(&mount).into_diagnostic()?;
        super::run(Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(&mount))?;
        Ok(Self { mount, _directory: directory })
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.mount).stderr(Stdio::null()).status().ok();
    }
}

/// Adds a row for durable appends of 4 KiB, or says that it is missing.
pub(crate) fn add_appends(report: &mut Report, count: u64, rounds: usize) -> Result<()> {
    if !apt::is_root() {
        report.fact("ext4", "skipped: mounting it needs root");
        return Ok(());
    }
    apt::ensure(&[NEED])?;
    let measured = rounds_of(rounds, |index| {
        if index == 0 {
            let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
            let fs = super::variants::new_fs(directory.path(), 256 << 20)?;
            let file = fs.root().create("file", pm_fs::NewFile::default()).into_diagnostic()?;
            super::rate(count, |_| file.append(&[1; 4096]).map(drop).into_diagnostic())
        } else {
            let ext4 = Ext4::new(256 << 20)?;
            append_synced(&ext4.mount.join("file"), count)
        }
    })?;
    let pairs = measured.iter().map(|[ours, theirs]| Pair { ours: *ours, theirs: *theirs }).collect();
    report.row("append 4 KiB, durable", "ext4, fdatasync", "calls/s", pairs, Some(100.0));
    Ok(())
}

fn append_synced(path: &Path, count: u64) -> Result<f64> {
    let mut file = OpenOptions::new().append(true).create(true).open(path).into_diagnostic()?;
    super::rate(count, |_| file.write_all(&[1; 4096]).and_then(|()| file.sync_data()).into_diagnostic())
}
