//! The identity of a disk, which its ublk device keeps.

use super::open::{may_any_wait, open_waiting};
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_core::RegionOptions;
use pmbd::DiskOptions;
use pmbd::disk::DiskKind;
use pmbd::ublk::{self, DeviceIdentity, UblkError, UblkUnavailable};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use std::path::Path;

/// The identity of the file and of the pool in it. A copy of the file is another disk, although it has the same pool identity, and so is a new
/// file on the inode number of a deleted one; the device that waits belongs to the original.
pub(super) fn identity(file: BorrowedFd<'_>, kind: DiskKind) -> rustix::io::Result<DeviceIdentity> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let file = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let mut unique = Vec::new();
    for number in [file.stx_dev_major, file.stx_dev_minor, file.stx_rdev_major, file.stx_rdev_minor] {
        unique.extend(number.to_le_bytes());
    }
    unique.extend(file.stx_ino.to_le_bytes());
    // File systems without it do not reuse inode numbers soon: hugetlbfs increments them.
    if StatxFlags::from_bits_retain(file.stx_mask).contains(StatxFlags::BTIME) {
        unique.extend(file.stx_btime.tv_sec.to_le_bytes());
        unique.extend(file.stx_btime.tv_nsec.to_le_bytes());
    }
    if let DiskKind::Pool { uuid, .. } = kind {
        unique.extend(uuid.into_bytes());
    }
    Ok(DeviceIdentity::new(unique))
}

/// Refuses to change a disk, or to serve it in another way, while a ublk device of it waits for a server. A takeover would run the device's
/// requests in flight, over the data written meanwhile, and a file system on it would not notice. Refuses also if there are devices that
/// this user may not query.
///
/// Leaves the disk unchanged: its next server needs the pages that the last one left in the cache.
pub(super) fn check_none_waits(path: &Path) -> miette::Result<()> {
    if !may_any_wait()? {
        return Ok(());
    }
    // If it does not exist, or cannot be opened, the command fails to open it too, and reports why.
    let Ok(file) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(());
    };
    // It has two identities as a disk: a pool can have been served raw.
    let mut kinds = vec![DiskKind::Raw];
    let region = RegionOptions::new().read_only().keep_pages(true);
    match open_waiting(path, false, &DiskOptions { region, ..DiskOptions::default() }) {
        Ok(disk) => kinds.push(disk.info().kind),
        Err(error) if error.is_busy() => return Err(error.into()),
        // A pool that cannot be opened serves no device.
        Err(_) => {}
    }
    for kind in kinds {
        let identity = identity(file.as_fd(), kind).into_diagnostic()?;
        let waiting = match ublk::find_recoverable(identity) {
            Err(UblkError::Unavailable(UblkUnavailable::NoPermission)) => {
                return Err(miette!(
                    help = "run this as root, or give this user access to /dev/ublk-control",
                    "a ublk device of this machine may be {}, waiting for its next server, and this user may not query the driver",
                    path.display()
                ));
            }
            other => other.into_diagnostic().wrap_err("querying the ublk device of this disk")?,
        };
        if let Some(device) = waiting {
            let (path, device_id) = (path.display(), device.device_id);
            let raw = if kind == DiskKind::Raw { " --raw" } else { "" };
            return Err(miette!(
                help = format!(
                    "`pmbd serve {path}{raw} --transport ublk` takes the device over, and `pmbd stop /dev/ublkb{device_id}` removes it"
                ),
                "/dev/ublkb{device_id} is this disk, its server died, and it waits for the next one"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::time::Duration;

    #[test]
    fn new_file_on_reused_inode_is_another_disk() {
        for dir in [tempfile::tempdir_in("."), tempfile::tempdir_in("/dev/shm")] {
            let dir = dir.unwrap();
            let path = dir.path().join("disk");
            let create = || {
                std::fs::write(&path, "").unwrap();
                let file = std::fs::File::open(&path).unwrap();
                let number = file.metadata().unwrap().ino();
                (number, identity(file.as_fd(), DiskKind::Raw).unwrap())
            };
            let deleted = create();
            let again = identity(std::fs::File::open(&path).unwrap().as_fd(), DiskKind::Raw).unwrap();
            assert_eq!(again, deleted.1);
            // ext4 reuses the number at once, unless another process creates a file at that moment.
            for _ in 0..20 {
                std::fs::remove_file(&path).unwrap();
                // More than a tick of the file system's clock.
                std::thread::sleep(Duration::from_millis(12));
                let new = create();
                assert_ne!(new.1, deleted.1, "both are inode {}", deleted.0);
                if new.0 == deleted.0 {
                    break;
                }
            }
        }
    }
}
