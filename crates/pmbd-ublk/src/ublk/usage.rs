//! The users of a device: detecting them, excluding them, and stopping a device that has none.

use super::devices;
use super::error::{UblkError, Usage};
use super::info::DeviceInfo;
use super::mounts;
use pm_ublk::Control;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

/// An exclusive hold on a block device: while it lives, the device cannot be mounted. `None` if there is no device.
#[derive(Debug)]
pub(super) struct Claim {
    #[expect(dead_code, reason = "held for the exclusion alone")]
    file: Option<File>,
}

/// Whether `/dev/ublkbN` is mounted or held, and how. `None` if it is free, or does not exist.
///
/// The kernel does not tell which processes have it open without holding it exclusively.
///
/// # Errors
/// When the device cannot be opened for another reason than being held.
pub fn in_use(device_id: u32) -> Result<Option<Usage>, UblkError> {
    match claim(device_id) {
        Ok(_) => Ok(None),
        Err(UblkError::InUse { usage, .. }) => Ok(Some(usage)),
        Err(other) => Err(other),
    }
}

/// Stops and deletes a device, served or waiting for a server. Its server, if any, ends.
///
/// # Errors
/// [`UblkError::Foreign`] for a device of another program. [`UblkError::InUse`] while it is mounted or held, unless `force`: then a mounted file
/// system fails as if its disk were pulled. [`UblkError::TimedOut`] if a process has it open after `timeout`: the device then goes when it is closed.
pub fn stop(device_id: u32, force: bool, timeout: Duration) -> Result<(), UblkError> {
    let mut control = Control::open()?;
    if DeviceInfo::from(&*control.info(device_id)?).identity.is_none() {
        return Err(UblkError::Foreign { device_id });
    }
    let claim = if force { None } else { Some(claim(device_id)?) };
    control.stop(device_id, timeout)?;
    drop(claim);
    control.delete(device_id, timeout)?;
    check_deleted(device_id)
}

/// Checks that a deleted device has left sysfs, which it does before the driver reports the deletion.
pub(super) fn check_deleted(device_id: u32) -> Result<(), UblkError> {
    if devices::exists(device_id) {
        return Err(UblkError::TimedOut { command: "delete", device_id, waited: Duration::ZERO });
    }
    Ok(())
}

/// Holds the device exclusively, so that no use of it can begin.
pub(super) fn claim(device_id: u32) -> Result<Claim, UblkError> {
    let failed = || UblkError::system("opening the block device exclusively");
    let path = PathBuf::from(format!("/dev/ublkb{device_id}"));
    match path.metadata() {
        Ok(found) if found.file_type().is_block_device() => {}
        Ok(_) => return Ok(Claim { file: None }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Claim { file: None }),
        Err(e) => return Err(failed()(e)),
    }
    match File::options().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(&path) {
        Ok(file) => Ok(Claim { file: Some(file) }),
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::BUSY) => {
                let usage = Usage { mounts: mounts::mounts(&path).map_err(failed())?, held: true };
                Err(UblkError::InUse { device_id, usage })
            }
            // The node exists, but not the disk.
            Some(Errno::NXIO | Errno::NODEV) => Ok(Claim { file: None }),
            _ => Err(failed()(e)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_device_is_not_in_use() {
        assert_eq!(in_use(999_999).unwrap(), None);
    }
}
