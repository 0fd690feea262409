//! Opening and creating disks.

use super::args::{self, Serve};
use super::error::AtPath;
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_cli_common::Size;
use pm_core::RegionOptions;
use pmbd::ublk::{self, UblkUnavailable};
use pmbd::{Disk, DiskOptions, SectorSize};
use std::any::Any;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time to wait for a lock that a dying server still holds.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// A disk that this process created and does not serve yet. Dropping it removes the file, so a server that fails to start leaves nothing
/// behind. The file is locked until it is removed: otherwise another process could open it in between, and lose its acknowledged writes.
#[derive(Debug)]
pub(super) struct NewDisk {
    path: PathBuf,
    /// Device and inode, so that no other file is removed.
    identity: (u64, u64),
    kept: bool,
    /// Holds the lock. Dropped after the file is removed.
    lock: Option<Arc<dyn Any + Send + Sync>>,
}

impl NewDisk {
    /// The disk just created at `path`.
    fn at(path: &Path) -> io::Result<Self> {
        let found = identity(path);
        if found.is_err()
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove the disk that was just created");
        }
        Ok(Self { path: path.to_path_buf(), identity: found?, kept: false, lock: None })
    }

    /// The same disk, with the engine that holds its lock.
    pub(super) fn with_engine(mut self, engine: Arc<dyn Any + Send + Sync>) -> Self {
        self.lock = Some(engine);
        self
    }

    /// The disk is served, and is kept.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for NewDisk {
    fn drop(&mut self) {
        if !self.kept
            && identity(&self.path).is_ok_and(|now| now == self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the disk that was just created");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Warns that opening takes time and space, because the holes of a file get blocks.
fn announce_filling(path: &Path) {
    // On an error, opening fails and reports it.
    let Ok(found) = std::fs::metadata(path) else { return };
    let missing_bytes = found.len().saturating_sub(found.blocks() * 512);
    if found.is_file() && missing_bytes > 0 {
        tracing::warn!(
            path = %path.display(),
            missing_bytes,
            "the file has holes; they get blocks now, so that no later write fails for lack of space"
        );
    }
}

/// Opens the disk, or creates it: then with the guard that removes it again unless it is served. A server that may take a device over must
/// keep unflushed data of the last server, some of which may be in the page cache only.
pub(super) fn open_or_create(args: &Serve) -> miette::Result<(Disk, Option<NewDisk>)> {
    let mut region =
        args.writes.region(region(&args.open)?)?.populate(args.populate).keep_pages(may_any_wait()?);
    if args.read_only {
        region = region.read_only();
    }
    if args.open.raw && !args.read_only {
        announce_filling(&args.path);
    }
    let options = DiskOptions {
        region,
        sector: sector(args.open.sector)?,
        writes: args.writes.policy(),
        buffers: args.buffer.options(),
        buffer_dir: args.buffer.buffer_dir.clone(),
        discard_buffered: args.buffer.discard_buffered,
    };
    match (open_waiting(&args.path, args.open.raw, &options), args.size) {
        (Ok(disk), Some(size)) if disk.info().capacity_bytes != size.0 => Err(miette!(
            help = "omit --size to serve the existing disk",
            "{} already exists, with {}, but --size is {size}",
            args.path.display(),
            Size(disk.info().capacity_bytes)
        )),
        (Ok(disk), _) => Ok((disk, None)),
        (Err(error), Some(size)) if error.is_not_found() && args.open.raw => Err(miette!(
            help = format!("`truncate --size={} {}` makes a file of zeroes", size.0, args.path.display()),
            "{error}, and --raw serves an existing file"
        )),
        (Err(error), Some(size)) if error.is_not_found() => {
            let disk = Disk::create(&args.path, size.0, &options).map_err(AtPath::new(&args.path))?;
            let new =
                NewDisk::at(&args.path).into_diagnostic().wrap_err("reading the metadata of the new disk")?;
            Ok((disk, Some(new)))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Opens the disk. A server that was just killed holds its lock until the kernel has removed its process, for some milliseconds, and the next one may be
/// started meanwhile.
pub(super) fn open_waiting(path: &Path, raw: bool, options: &DiskOptions) -> Result<Disk, AtPath> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        let opened = if raw { Disk::open_raw(path, options) } else { Disk::open(path, options) };
        match opened.map_err(AtPath::new(path)) {
            Err(error) if error.is_busy() && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// Whether a ublk device waits for a server, or may soon, as far as this user can see; false without a driver.
pub(super) fn may_any_wait() -> miette::Result<bool> {
    match ublk::may_any_wait() {
        Err(ublk::UblkError::Unavailable(UblkUnavailable::NoDriver)) => Ok(false),
        other => other.into_diagnostic().wrap_err("querying ublk devices"),
    }
}

/// The region options of the command line.
pub(super) fn region(open: &args::Open) -> miette::Result<RegionOptions> {
    let mut region = RegionOptions::new();
    if let Some(flush) = open.flush {
        region = region.flush_insn(flush.into()).into_diagnostic()?;
    }
    if let Some(bytes) = open.nt_width {
        let width =
            args::nt_width(bytes).ok_or_else(|| miette!("--nt-width is 16, 32 or 64, not {bytes}"))?;
        region = region.nt_width(width).into_diagnostic()?;
    }
    Ok(region)
}

/// The sector of the command line.
pub(super) fn sector(bytes: u64) -> miette::Result<SectorSize> {
    SectorSize::from_bytes(bytes).into_diagnostic()
}
