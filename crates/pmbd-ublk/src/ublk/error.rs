//! Why a device could not be made, taken over or removed.

use super::{Usage, options::OptionsError};
use rustix::io::Errno;
use std::time::Duration;

/// Why there is no ublk here.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UblkUnavailable {
    /// The driver is not loaded, or this kernel has none.
    #[error(
        "there is no /dev/ublk-control: load the driver with `modprobe ublk_drv`; it comes with kernel 6.0 and later \
         when built with CONFIG_BLK_DEV_UBLK, which Debian's stock 6.1 kernel is not"
    )]
    NoDriver,
    /// The driver is there, for others.
    #[error("no permission to open /dev/ublk-control: run as root")]
    NoPermission,
    /// The driver is there and does not answer as it should.
    #[error("the ublk driver cannot be used: {reason}")]
    Unusable {
        /// What it answered.
        reason: String,
    },
}

/// Why a device could not be served, found or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// There is no ublk here.
    #[error(transparent)]
    Unavailable(#[from] UblkUnavailable),
    /// An option is out of bounds.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The device number that was asked for is taken.
    #[error("/dev/ublkb{device_id} exists already: choose another number, or none to get a free one")]
    IdTaken {
        /// The number.
        device_id: u32,
    },
    /// There is no such device.
    #[error("there is no ublk device {device_id}")]
    NoDevice {
        /// The number.
        device_id: u32,
    },
    /// The device is not this program's to stop.
    #[error("ublk device {device_id} is of another program")]
    Foreign {
        /// The number.
        device_id: u32,
    },
    /// Another server has a device on the same pool.
    #[error("process {pid} serves this pool already, as /dev/ublkb{device_id}")]
    AlreadyServed {
        /// Its device.
        device_id: u32,
        /// The server.
        pid: i32,
    },
    /// A device of this pool waits for a server, but is not the device that would be served now.
    #[error(
        "/dev/ublkb{device_id} waits to be taken over, but {what} would change from {was} to {wanted}: serve it as it \
         was, or stop it first"
    )]
    Changed {
        /// The device that waits.
        device_id: u32,
        /// What differs.
        what: &'static str,
        /// How the kernel has it.
        was: u64,
        /// How it would be served.
        wanted: u64,
    },
    /// A device of this pool is left from a server that died, and cannot be taken over.
    #[error(
        "/dev/ublkb{device_id} cannot be taken over, for the driver did not grant user recovery: stop it first"
    )]
    NotRecoverable {
        /// The device.
        device_id: u32,
    },
    /// The device is mounted or held open exclusively.
    #[error("/dev/ublkb{device_id} is in use: {usage}")]
    InUse {
        /// The device.
        device_id: u32,
        /// By what.
        usage: Usage,
    },
    /// A command took longer than it may. It may still take effect.
    #[error("{command} of ublk device {device_id} did not finish within {waited:?}: something has it open")]
    TimedOut {
        /// Which command.
        command: &'static str,
        /// For which device.
        device_id: u32,
        /// How long.
        waited: Duration,
    },
    /// The driver refused a command.
    #[error("the ublk driver refused to {command} device {device_id}: {errno}")]
    Refused {
        /// Which command.
        command: &'static str,
        /// For which device; all ones when it had no number yet.
        device_id: u32,
        /// Its answer.
        errno: Errno,
    },
    /// The driver took the queues of a device back that was not stopped. It waits for another server.
    #[error(
        "the ublk driver took the queues of device {device_id} from this server; `serve` takes the device over again"
    )]
    TakenBack {
        /// The device.
        device_id: u32,
    },
    /// A queue could not be set up, or broke while serving.
    #[error("queue {queue} of ublk device {device_id}: {reason}")]
    Queue {
        /// The device.
        device_id: u32,
        /// Which queue.
        queue: u16,
        /// What happened.
        reason: String,
    },
    /// A system call failed.
    #[error("{action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// The answer.
        source: std::io::Error,
    },
}

impl UblkError {
    /// For `map_err`: a system call that failed while doing `action`.
    pub(super) fn system<E: Into<std::io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}
