//! Why a device could not be made, taken over or removed.

use pm_ublk::ControlError;
use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Why ublk cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum UblkUnavailable {
    /// The driver is not loaded, or this kernel has none.
    #[error(
        "there is no /dev/ublk-control: load the driver with `modprobe ublk_drv`; it comes with kernel 6.0 and later \
         when built with CONFIG_BLK_DEV_UBLK, which Debian's stock 6.1 kernel is not"
    )]
    NoDriver,
    /// The driver exists, but this user may not use it.
    #[error("no permission to open /dev/ublk-control: run as root")]
    NoPermission,
    /// The driver does not answer as expected.
    #[error("the ublk driver cannot be used: {reason}")]
    Unusable { reason: String },
}

/// Why a device could not be served, found or stopped.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum UblkError {
    /// ublk cannot be used.
    #[error(transparent)]
    Unavailable(#[from] UblkUnavailable),
    /// An option is out of bounds.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The requested device number is in use.
    #[error(
        "/dev/ublkb{device_id} already exists: choose another number, or omit the number to get a free one"
    )]
    IdTaken { device_id: u32 },
    /// The device does not exist.
    #[error("there is no ublk device {device_id}")]
    NoDevice { device_id: u32 },
    /// The device belongs to another program.
    #[error("ublk device {device_id} belongs to another program")]
    Foreign { device_id: u32 },
    /// Another server has a device on the same pool.
    #[error("process {pid} serves this pool already, as /dev/ublkb{device_id}")]
    AlreadyServed { device_id: u32, pid: i32 },
    /// A device of this pool waits for a server, but its clients would see it change.
    #[error(
        "/dev/ublkb{device_id} waits to be taken over, but {what} would change from {was} to {wanted}: serve it as it \
         was, or stop it first"
    )]
    Changed { device_id: u32, what: &'static str, was: u64, wanted: u64 },
    /// The server of this pool's device died, and the device cannot be taken over.
    #[error(
        "/dev/ublkb{device_id} cannot be taken over, for the driver did not grant user recovery: stop it first"
    )]
    NotRecoverable { device_id: u32 },
    /// The device is mounted or held open exclusively.
    #[error("/dev/ublkb{device_id} is in use: {usage}")]
    InUse { device_id: u32, usage: Usage },
    /// A command did not complete in time. It may still take effect.
    #[error("{command} of ublk device {device_id} did not finish within {waited:?}: a process has it open")]
    TimedOut { command: &'static str, device_id: u32, waited: Duration },
    /// The driver refused a command.
    #[error("the ublk driver refused to {command} device {device_id}: {errno}")]
    Refused { command: &'static str, device_id: u32, errno: Errno },
    /// The driver aborted the queues of a device that was not stopped. The device waits for another server.
    #[error(
        "the ublk driver took the queues of device {device_id} from this server; `serve` takes the device over again"
    )]
    Aborted { device_id: u32 },
    /// A queue could not be set up, or failed while serving.
    #[error("queue {queue} of ublk device {device_id}: {reason}")]
    Queue { device_id: u32, queue: u16, reason: String },
    /// A system call failed.
    #[error("{action}: {source}")]
    System { action: &'static str, source: std::io::Error },
}

impl UblkError {
    /// For `map_err`: a system call failed while doing `action`.
    pub(super) fn system<E: Into<std::io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}

/// An option out of bounds.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// The number of queues.
    #[error("{0} queues: choose 1 to 4096")]
    Queues(u16),
    /// The depth.
    #[error("a depth of {0}: choose 1 to 4096")]
    Depth(u16),
    /// The longest request.
    #[error("requests of {0} bytes: choose a multiple of 4096 up to 32 MiB")]
    MaxIoBytes(u32),
    /// The longest zeroing.
    #[error("discards of {0} bytes: choose a multiple of 4096 up to 1 GiB, or 0 for none")]
    MaxZeroBytes(u32),
    /// The polling time.
    #[error("{0:?} of polling: choose at most a millisecond")]
    Spin(Duration),
    /// An empty list of CPUs.
    #[error("an empty list of CPUs to run on")]
    NoCpus,
}

/// What keeps a device from being removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Mount points of the device or of its partitions, as far as this process can see.
    pub mounts: Vec<PathBuf>,
    /// The device is held exclusively: by a mount, a device mapping, swap, or a program.
    pub held: bool,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mounts: Vec<_> = self.mounts.iter().map(|mount| mount.display().to_string()).collect();
        if mounts.is_empty() {
            return write!(
                f,
                "held open exclusively, by a mount elsewhere, a device mapping, swap or a program"
            );
        }
        write!(f, "mounted at {}", mounts.join(", "))
    }
}

impl From<ControlError> for UblkError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NoDriver => UblkUnavailable::NoDriver.into(),
            ControlError::NoPermission => UblkUnavailable::NoPermission.into(),
            ControlError::NoDevice { device_id } => Self::NoDevice { device_id },
            ControlError::TimedOut { command, device_id, waited } => {
                Self::TimedOut { command, device_id, waited }
            }
            ControlError::Refused { command, device_id, errno } => {
                Self::Refused { command, device_id, errno }
            }
            ControlError::System { action, source } => Self::System { action, source },
            other => UblkUnavailable::Unusable { reason: other.to_string() }.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_names_mounts() {
        let usage = Usage { mounts: vec!["/a".into(), "/b".into()], held: true };
        assert_eq!(usage.to_string(), "mounted at /a, /b");
        assert!(Usage { mounts: vec![], held: true }.to_string().starts_with("held open exclusively"));
    }
}
