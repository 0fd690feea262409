//! Memory to measure on: ordinary pages, and huge ones of a file system of its own.

use miette::{IntoDiagnostic as _, Result};
use pm_bench::Report;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::process;

/// A tmpfs.
pub(crate) struct Memory {
    pub(crate) has_huge_pages: bool,
    /// Unmounted on drop, if it was mounted.
    mounted: Option<tempfile::TempDir>,
    path: PathBuf,
}

impl Memory {
    /// `/dev/shm`, and a tmpfs with huge pages if the system lets this user mount one.
    pub(crate) fn all(report: &mut Report) -> Result<Vec<Self>> {
        let mut all = vec![Self { has_huge_pages: false, mounted: None, path: "/dev/shm".into() }];
        let directory = tempfile::tempdir().into_diagnostic()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "huge=always,size=4G,mode=700", "pm-bench"]).arg(directory.path());
        match process::output(&mut mount) {
            Ok(_) => {
                let path = directory.path().to_path_buf();
                all.push(Self { has_huge_pages: true, mounted: Some(directory), path });
            }
            Err(error) => report.fact("huge pages", format!("not measured: {error}")),
        }
        Ok(all)
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The size of windows that do not split its pages.
    pub(crate) const fn window_bytes(&self) -> usize {
        if self.has_huge_pages { 2 << 20 } else { 4 << 10 }
    }

    /// For the names of rows.
    pub(crate) const fn name(&self) -> &'static str {
        if self.has_huge_pages { "2 MiB pages" } else { "4 KiB pages" }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.mounted.is_some()
            && let Err(error) = process::output(Command::new("umount").arg(&self.path))
        {
            eprintln!("{} stays mounted: {error:?}", self.path.display());
        }
    }
}
