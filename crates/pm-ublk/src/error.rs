//! Why a command, or a queue, failed.

use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// Why a command of the control device failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum ControlError {
    /// The driver is not loaded, or this kernel has none.
    #[error("there is no /dev/ublk-control")]
    NoDriver,
    /// This user may not use the driver, or this device.
    #[error("no permission to use /dev/ublk-control")]
    NoPermission,
    /// The device does not exist.
    #[error("there is no ublk device {device_id}")]
    NoDevice { device_id: u32 },
    /// The command did not complete in time. It may still take effect.
    #[error("{command} of ublk device {device_id} did not finish within {waited:?}")]
    TimedOut { command: &'static str, device_id: u32, waited: Duration },
    /// The driver refused the command.
    #[error("the ublk driver refused to {command} device {device_id}: {errno}")]
    Refused { command: &'static str, device_id: u32, errno: Errno },
    /// A system call failed.
    #[error("{action}: {source}")]
    System { action: &'static str, source: io::Error },
}

impl ControlError {
    /// For `map_err`: a system call failed while doing `action`.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}

/// Why a queue cannot be served.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum QueueError {
    /// The driver refused a tag, or an answer.
    #[error("the ublk driver refused tag {tag}: {errno}")]
    Refused { tag: u16, errno: Errno },
    /// The ring has a completion that belongs to no tag, or a result that the driver never gives.
    #[error("an unexpected completion: {result} for {user_data:#x}")]
    Unexpected { user_data: u64, result: i32 },
    /// The queue was prepared for another number of tags, or for shorter requests, than the device has.
    #[error("device {device_id} has {depth} tags in a queue and requests of {max_io_bytes} bytes")]
    Unfit { device_id: u32, depth: u16, max_io_bytes: u32 },
    /// A system call failed.
    #[error("{action}: {source}")]
    System { action: &'static str, source: io::Error },
}

impl QueueError {
    /// For `map_err`: a system call failed while doing `action`.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}
