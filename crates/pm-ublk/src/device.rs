//! `/dev/ublkcN`: the device as its server sees it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// An open `/dev/ublkcN`. One process at a time may have it open.
///
/// The driver releases the device when this is dropped and all [queues](crate::Queue) of it are, too.
#[derive(Debug)]
pub struct CharDevice(File);

impl CharDevice {
    /// Opens the character device, which the driver makes when a device is added.
    ///
    /// # Errors
    /// Those of open(2): `ENOENT` or `EACCES` also for a moment after the device was added, until udev has made the node, and `EBUSY` until the kernel
    /// has closed the descriptors of the last server.
    pub fn open(device_id: u32) -> io::Result<Self> {
        File::options().read(true).write(true).open(format!("/dev/ublkc{device_id}")).map(Self)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    #[cfg(test)]
    pub(crate) const fn of(file: File) -> Self {
        Self(file)
    }
}

impl AsFd for CharDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
