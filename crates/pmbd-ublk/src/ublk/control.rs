//! `/dev/ublk-control`: queries and removes devices, from outside their servers too.
//!
//! A control command is a submission with 80 bytes of payload on an io_uring of 128-byte entries. One command is in flight at a time.
//! By hand: libublk's commands have no timeout, and read state files.
#![expect(unsafe_code, reason = "the kernel is given the address of the memory that it answers into")]

use super::error::{UblkError, UblkUnavailable};
use super::info::{DeviceInfo, Features};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use libublk_rs_sys as sys;
use rustix::io::Errno;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The driver's control device.
const PATH: &str = "/dev/ublk-control";

/// The last control command that has a legacy number, the only kind of number before kernel 6.4.
const LAST_LEGACY: u32 = sys::UBLK_CMD_GET_DEV_INFO2;

/// The pause after a failed wait.
const WAIT_AGAIN: Duration = Duration::from_millis(1);

/// Stands for no device.
pub(super) const NO_DEVICE: u32 = u32::MAX;

/// An open control device.
pub(super) struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// Distinguishes an answer from that of an earlier command that timed out.
    token: u64,
}

impl Control {
    /// Opens the control device.
    ///
    /// # Errors
    /// Distinguishes a missing driver from missing permission.
    pub(super) fn open() -> Result<Self, UblkError> {
        let file = File::options().read(true).write(true).open(PATH).map_err(|e| match e.kind() {
            // ENXIO and ENODEV: the device node has outlived its driver.
            ErrorKind::NotFound => UblkUnavailable::NoDriver.into(),
            ErrorKind::PermissionDenied => UblkUnavailable::NoPermission.into(),
            _ if matches!(Errno::from_io_error(&e), Some(Errno::NXIO | Errno::NODEV)) => {
                UblkUnavailable::NoDriver.into()
            }
            _ => UblkError::system("opening /dev/ublk-control")(e),
        })?;
        Ok(Self { file, ring: ring()?, token: 0 })
    }

    /// The driver's features; none for drivers before 6.5, which lack the command.
    pub(super) fn features(&mut self) -> Result<Features, UblkError> {
        let mut bits = 0_u64;
        let answer = self.read("query the features of", sys::UBLK_U_CMD_GET_FEATURES, NO_DEVICE, &mut bits);
        match answer {
            Ok(()) => Ok(Features::from_bits_retain(bits)),
            Err(UblkError::Refused { errno: Errno::INVAL | Errno::NODEV | Errno::OPNOTSUPP, .. }) => {
                Ok(Features::default())
            }
            Err(other) => Err(other),
        }
    }

    /// The driver's record of a device.
    pub(super) fn info(&mut self, device_id: u32) -> Result<DeviceInfo, UblkError> {
        let mut info = sys::ublksrv_ctrl_dev_info::default();
        self.read("query", sys::UBLK_U_CMD_GET_DEV_INFO, device_id, &mut info)?;
        Ok(DeviceInfo::from(&info))
    }

    /// A device's parameters.
    pub(super) fn params(&mut self, device_id: u32) -> Result<sys::ublk_params, UblkError> {
        let mut params =
            sys::ublk_params { len: Self::len_of::<sys::ublk_params>().into(), ..Default::default() };
        self.read("query the parameters of", sys::UBLK_U_CMD_GET_PARAMS, device_id, &mut params)?;
        Ok(params)
    }

    /// Removes `/dev/ublkbN`; its server's queues end. A stopped device stays stopped.
    pub(super) fn stop(&mut self, device_id: u32, timeout: Duration) -> Result<(), UblkError> {
        let command = sys::ublksrv_ctrl_cmd { dev_id: device_id, ..Default::default() };
        self.run("stop", sys::UBLK_U_CMD_STOP_DEV, command, timeout)
    }

    /// Deletes the device, and waits until it is gone. The driver waits until the last process has closed it.
    pub(super) fn delete(&mut self, device_id: u32, timeout: Duration) -> Result<(), UblkError> {
        let command = sys::ublksrv_ctrl_cmd { dev_id: device_id, ..Default::default() };
        match self.run("delete", sys::UBLK_U_CMD_DEL_DEV, command, timeout) {
            // Another process has deleted it.
            Err(UblkError::NoDevice { .. }) => Ok(()),
            other => other,
        }
    }

    /// Runs a command that fills `answer`.
    fn read<T: Copy>(
        &mut self,
        name: &'static str,
        op: u32,
        device_id: u32,
        answer: &mut T,
    ) -> Result<(), UblkError> {
        let command = sys::ublksrv_ctrl_cmd {
            dev_id: device_id,
            addr: (&raw mut *answer) as u64,
            len: Self::len_of::<T>(),
            ..Default::default()
        };
        // No timeout, so that the driver is done with `answer` when this returns. These commands do not block.
        self.run(name, op, command, Duration::MAX)
    }

    fn len_of<T>() -> u16 {
        const { assert!(size_of::<T>() <= u16::MAX as usize) };
        #[expect(clippy::cast_possible_truncation, reason = "asserted just above")]
        let len_bytes = size_of::<T>() as u16;
        len_bytes
    }

    /// Runs one command to its end, or until `timeout` is over.
    fn run(
        &mut self,
        name: &'static str,
        op: u32,
        command: sys::ublksrv_ctrl_cmd,
        timeout: Duration,
    ) -> Result<(), UblkError> {
        let device_id = command.dev_id;
        let command = sys::ublksrv_ctrl_cmd { queue_id: u16::MAX, ..command };
        let mut errno = self.submit(name, op, &command, timeout)?;
        let legacy = op & 0xff;
        let unknown = |errno| matches!(errno, Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY));
        if unknown(errno) && legacy <= LAST_LEGACY {
            // A kernel built without the legacy numbers refuses them: then the first answer counts.
            match self.submit(name, legacy, &command, timeout)? {
                Some(Errno::OPNOTSUPP) => {}
                other => errno = other,
            }
        }
        match errno {
            None => Ok(()),
            Some(Errno::NODEV) => Err(UblkError::NoDevice { device_id }),
            Some(Errno::ACCESS | Errno::PERM) => Err(UblkUnavailable::NoPermission.into()),
            Some(errno) => Err(UblkError::Refused { command: name, device_id, errno }),
        }
    }

    /// Submits one command and waits for its answer.
    fn submit(
        &mut self,
        name: &'static str,
        op: u32,
        command: &sys::ublksrv_ctrl_cmd,
        timeout: Duration,
    ) -> Result<Option<Errno>, UblkError> {
        self.token += 1;
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), op)
            .cmd(payload(command))
            .build()
            .user_data(self.token);
        // SAFETY: the descriptor is open for as long as `self`. The only address in the entry is `command.addr`: null, or that of
        // memory that `read` borrows exclusively until the answer is here, as it waits without a timeout, or until the entry is
        // discarded unsubmitted.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| UblkError::TimedOut {
            command: name,
            device_id: command.dev_id,
            waited: Duration::ZERO,
        })?;
        let started = Instant::now();
        loop {
            while let Some(answer) = self.ring.completion().next() {
                if answer.user_data() == self.token {
                    return Ok((answer.result() < 0).then(|| Errno::from_raw_os_error(-answer.result())));
                }
            }
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(UblkError::TimedOut {
                    command: name,
                    device_id: command.dev_id,
                    waited: timeout,
                });
            }
            if let Err(why) = self.wait(left) {
                if !self.ring.submission().is_empty() {
                    // The next command would submit this entry too, whose answer buffer no longer exists.
                    self.ring = ring()?;
                    return Err(why);
                }
                // The driver has the command, and will complete it.
                tracing::debug!(error = %why, command = name, "a wait failed; waiting again");
                std::thread::sleep(WAIT_AGAIN);
            }
        }
    }

    /// Submits the pending entries and waits for a completion, a signal, or the end of `left`.
    fn wait(&self, left: Duration) -> Result<(), UblkError> {
        // A wait without a timeout takes a step an hour.
        let left = types::Timespec::from(left.min(Duration::from_secs(3600)));
        let arguments = types::SubmitArgs::new().timespec(&left);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::TIME | Errno::INTR)) => Ok(()),
            Err(e) => Err(UblkError::system("waiting for the ublk driver")(e)),
        }
    }
}

fn ring() -> Result<IoUring<squeue::Entry128, cqueue::Entry>, UblkError> {
    IoUring::builder().build(4).map_err(UblkError::system("setting up an io_uring"))
}

/// The command in its 80 bytes.
#[expect(clippy::host_endian_bytes, reason = "for the kernel of this host")]
fn payload(command: &sys::ublksrv_ctrl_cmd) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&command.dev_id.to_ne_bytes());
    bytes[4..6].copy_from_slice(&command.queue_id.to_ne_bytes());
    bytes[6..8].copy_from_slice(&command.len.to_ne_bytes());
    bytes[8..16].copy_from_slice(&command.addr.to_ne_bytes());
    bytes[16..24].copy_from_slice(&command.data[0].to_ne_bytes());
    bytes[24..26].copy_from_slice(&command.dev_path_len.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring that is not enabled yet submits nothing.
    #[test]
    fn failed_submission_is_discarded() {
        let ring = IoUring::builder().setup_r_disabled().build(4).unwrap();
        // This driver answers every command with success.
        let file = File::options().read(true).write(true).open("/dev/null").unwrap();
        let mut control = Control { file, ring, token: 0 };
        let refused = control.info(0).unwrap_err();
        assert!(matches!(refused, UblkError::System { .. }), "{refused}");
        assert!(control.ring.submission().is_empty(), "the next command would submit it, too");
        control.info(0).unwrap();
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn payload_matches_kernel_structure() {
        let command = sys::ublksrv_ctrl_cmd {
            dev_id: 0x0403_0201,
            queue_id: 0x0605,
            len: 0x0807,
            addr: 0x100f_0e0d_0c0b_0a09,
            data: [0x1817_1615_1413_1211],
            dev_path_len: 0x1a19,
            pad: 0,
            reserved: 0,
        };
        let bytes = payload(&command);
        assert!(bytes[..26].iter().copied().eq(1..=26));
        assert!(bytes[26..].iter().all(|b| *b == 0));
    }
}
