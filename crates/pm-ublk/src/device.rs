//! `/dev/ublkcN`: the device as its server sees it, and the driver's record of it.

use crate::sys;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// An open `/dev/ublkcN`. One process at a time may have it open.
///
/// The driver releases the device when this is dropped and all [queues](crate::Queue) of it are, too.
#[derive(Debug)]
pub struct CharDevice {
    file: File,
    device_id: u32,
}

/// The driver's record of a device, as [`Control`](crate::Control) has got it. A queue is served by its counts: the driver copies as much data into a buffer
/// as the record allows. So it cannot be made otherwise.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRecord(sys::ublksrv_ctrl_dev_info);

impl DeviceRecord {
    pub(crate) const fn of_driver(record: sys::ublksrv_ctrl_dev_info) -> Self {
        Self(record)
    }
}

impl Deref for DeviceRecord {
    type Target = sys::ublksrv_ctrl_dev_info;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl CharDevice {
    /// Opens the character device, which the driver makes when a device is added.
    ///
    /// # Errors
    /// Those of open(2): `ENOENT` or `EACCES` also for a moment after the device was added, until udev has made the node, and `EBUSY` until the kernel
    /// has closed the descriptors of the last server.
    pub fn open(device_id: u32) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(format!("/dev/ublkc{device_id}"))?;
        Ok(Self { file, device_id })
    }

    /// N of `/dev/ublkcN`.
    #[must_use]
    pub const fn device_id(&self) -> u32 {
        self.device_id
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    #[cfg(test)]
    pub(crate) const fn of(file: File) -> Self {
        Self { file, device_id: 0 }
    }
}

impl AsFd for CharDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
