//! `/dev/ublk-control`: adds, starts, queries, recovers, stops and deletes devices.
//!
//! A control command is a submission with 80 bytes of payload on an io_uring of 128-byte entries. One command is in flight at a time.
#![expect(unsafe_code, reason = "the kernel is given the address of the memory that it answers into")]

use crate::command::{control_payload, legacy};
use crate::device::DeviceRecord;
use crate::error::ControlError;
use crate::sys;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use std::fmt;
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

/// Stands for no device; as the number of a device to be added, for the first free one.
pub const ANY_DEVICE: u32 = u32::MAX;

/// Words of a set of CPUs, enough for the 8192 that Linux supports at most.
const CPU_WORDS: usize = 8192 / 64;

/// An open control device, for one thread at a time.
///
/// A command of a device that does not exist is [`ControlError::NoDevice`]; without permission for the device it is
/// [`ControlError::NoPermission`].
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// Distinguishes an answer from that of an earlier command that timed out.
    token: u64,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Control {
    /// Opens the control device.
    ///
    /// # Errors
    /// Distinguishes a missing driver from missing permission.
    pub fn open() -> Result<Self, ControlError> {
        let file = File::options().read(true).write(true).open(PATH).map_err(|e| match e.kind() {
            // ENXIO and ENODEV: the device node has outlived its driver.
            ErrorKind::NotFound => ControlError::NoDriver,
            ErrorKind::PermissionDenied => ControlError::NoPermission,
            _ if matches!(Errno::from_io_error(&e), Some(Errno::NXIO | Errno::NODEV)) => {
                ControlError::NoDriver
            }
            _ => ControlError::system("opening /dev/ublk-control")(e),
        })?;
        Ok(Self { file, ring: ring()?, token: 0 })
    }

    /// The driver's features, `UBLK_F_*`; none for drivers before 6.5, which lack the command.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn features(&mut self) -> Result<u64, ControlError> {
        let mut bits = 0_u64;
        let sent = Command::new("query the features of", sys::UBLK_U_CMD_GET_FEATURES, ANY_DEVICE);
        match self.exchange(sent, &mut bits) {
            Ok(()) => Ok(bits),
            Err(
                ControlError::NoDevice { .. }
                | ControlError::Refused { errno: Errno::INVAL | Errno::OPNOTSUPP, .. },
            ) => Ok(0),
            Err(other) => Err(other),
        }
    }

    /// Adds a device as `wanted`, of which the driver ignores the state and the process, and returns the driver's record of it: with its number, and with
    /// the features and counts that the driver has granted. It makes `/dev/ublkcN`. The device stays until it is deleted, whatever happens to this process.
    ///
    /// # Errors
    /// `EEXIST` if the number is taken, `EINVAL` for counts out of the driver's bounds.
    pub fn add(&mut self, wanted: &sys::ublksrv_ctrl_dev_info) -> Result<DeviceRecord, ControlError> {
        let mut info = *wanted;
        self.exchange(Command::new("add", sys::UBLK_U_CMD_ADD_DEV, wanted.dev_id), &mut info)?;
        Ok(DeviceRecord::of_driver(info))
    }

    /// The driver's record of a device.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn info(&mut self, device_id: u32) -> Result<DeviceRecord, ControlError> {
        let mut info = sys::ublksrv_ctrl_dev_info::default();
        self.exchange(Command::new("query", sys::UBLK_U_CMD_GET_DEV_INFO, device_id), &mut info)?;
        Ok(DeviceRecord::of_driver(info))
    }

    /// A device's parameters.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn params(&mut self, device_id: u32) -> Result<sys::ublk_params, ControlError> {
        let mut params = sys::ublk_params { len: len_of::<sys::ublk_params>().into(), ..Default::default() };
        let sent = Command::new("query the parameters of", sys::UBLK_U_CMD_GET_PARAMS, device_id);
        self.exchange(sent, &mut params)?;
        Ok(params)
    }

    /// Sets the parameters of a device that has not been started. Their length is filled in.
    ///
    /// # Errors
    /// `EINVAL` for parameters out of the driver's bounds, [`ControlError::NoPermission`] also for a device that has been started.
    pub fn set_params(&mut self, device_id: u32, params: &sys::ublk_params) -> Result<(), ControlError> {
        let mut params = sys::ublk_params { len: len_of::<sys::ublk_params>().into(), ..*params };
        let sent = Command::new("set the parameters of", sys::UBLK_U_CMD_SET_PARAMS, device_id);
        self.exchange(sent, &mut params)
    }

    /// The CPUs whose requests a queue of a device gets.
    ///
    /// # Errors
    /// `EINVAL` for a queue that the device does not have.
    pub fn queue_cpus(&mut self, device_id: u32, queue: u16) -> Result<Vec<usize>, ControlError> {
        let mut set = [0_u64; CPU_WORDS];
        let mut sent = Command::new("query the CPUs of", sys::UBLK_U_CMD_GET_QUEUE_AFFINITY, device_id);
        sent.data = queue.into();
        self.exchange(sent, &mut set)?;
        Ok(members(&set).collect())
    }

    /// Makes `/dev/ublkbN`, whose server is this process. Waits until all tags of all queues are fetched.
    ///
    /// # Errors
    /// `EINVAL` for a device without parameters, `EEXIST` for one that has been started.
    pub fn start(&mut self, device_id: u32) -> Result<(), ControlError> {
        self.run(Command::new("start", sys::UBLK_U_CMD_START_DEV, device_id).of_this_process())
    }

    /// Begins the recovery of a quiesced device: the driver drops the last server, and accepts fetches of another. The server must have
    /// fetched all queues, for up to Linux 6.15 the driver otherwise refuses, or crashes: see [`Offer`](crate::Offer).
    ///
    /// # Errors
    /// `EBUSY` while the device is not quiesced, or a process has its character device open; `EINVAL` for a device without recovery.
    pub fn begin_recovery(&mut self, device_id: u32) -> Result<(), ControlError> {
        self.run(Command::new("take over", sys::UBLK_U_CMD_START_USER_RECOVERY, device_id))
    }

    /// Ends a recovery: makes this process the server, and resumes the device. Waits until all tags of all queues are fetched.
    ///
    /// # Errors
    /// `EBUSY` for a device that is not quiesced, `EINVAL` for one without recovery.
    pub fn end_recovery(&mut self, device_id: u32) -> Result<(), ControlError> {
        let sent = Command::new("resume", sys::UBLK_U_CMD_END_USER_RECOVERY, device_id);
        self.run(sent.of_this_process())
    }

    /// Removes `/dev/ublkbN`; its server's queues end. A stopped device stays stopped.
    ///
    /// # Errors
    /// [`ControlError::TimedOut`] after `timeout`; the driver stops the device nevertheless.
    pub fn stop(&mut self, device_id: u32, timeout: Duration) -> Result<(), ControlError> {
        self.run_for(&Command::new("stop", sys::UBLK_U_CMD_STOP_DEV, device_id), timeout)
    }

    /// Deletes the device, and waits until it is gone. The driver waits until the last process has closed it. A device that does not exist is deleted.
    ///
    /// # Errors
    /// [`ControlError::TimedOut`] after `timeout`; the driver deletes the device nevertheless, when it is closed.
    pub fn delete(&mut self, device_id: u32, timeout: Duration) -> Result<(), ControlError> {
        match self.run_for(&Command::new("delete", sys::UBLK_U_CMD_DEL_DEV, device_id), timeout) {
            // Another process has deleted it.
            Err(ControlError::NoDevice { .. }) => Ok(()),
            other => other,
        }
    }

    /// Runs a command that reads or fills `memory`.
    fn exchange<T: Copy>(&mut self, mut command: Command, memory: &mut T) -> Result<(), ControlError> {
        command.address = (&raw mut *memory) as u64;
        command.len = len_of::<T>();
        // Without a timeout, so that the driver is done with `memory` when this returns. These commands do not block.
        self.run(command)
    }

    /// Runs a command to its end.
    fn run(&mut self, command: Command) -> Result<(), ControlError> {
        self.run_for(&command, Duration::MAX)
    }

    /// Runs one command to its end, or until `timeout` is over.
    fn run_for(&mut self, command: &Command, timeout: Duration) -> Result<(), ControlError> {
        let Command { name, number, device_id, .. } = *command;
        let mut errno = self.submit(command, number, timeout)?;
        let unknown = |errno| matches!(errno, Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY));
        if unknown(errno) && legacy(number) <= LAST_LEGACY {
            // A kernel built without the legacy numbers refuses them: then the first answer counts.
            match self.submit(command, legacy(number), timeout)? {
                Some(Errno::OPNOTSUPP) => {}
                other => errno = other,
            }
        }
        match errno {
            None => Ok(()),
            Some(Errno::NODEV) => Err(ControlError::NoDevice { device_id }),
            Some(Errno::ACCESS | Errno::PERM) => Err(ControlError::NoPermission),
            Some(errno) => Err(ControlError::Refused { command: name, device_id, errno }),
        }
    }

    /// Submits one command as `number` and waits for its answer.
    fn submit(
        &mut self,
        command: &Command,
        number: u32,
        timeout: Duration,
    ) -> Result<Option<Errno>, ControlError> {
        self.token += 1;
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), number)
            .cmd(control_payload(&command.structure()))
            .build()
            .user_data(self.token);
        let timed_out =
            |waited| ControlError::TimedOut { command: command.name, device_id: command.device_id, waited };
        // SAFETY: the descriptor is open for as long as `self`. The only address in the entry is `command.address`: null, or that of
        // memory that `exchange` borrows exclusively until the answer is here, as it waits without a timeout, or until the entry is
        // discarded unsubmitted.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| timed_out(Duration::ZERO))?;
        let started = Instant::now();
        loop {
            while let Some(answer) = self.ring.completion().next() {
                if answer.user_data() == self.token {
                    return Ok((answer.result() < 0).then(|| Errno::from_raw_os_error(-answer.result())));
                }
            }
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(timed_out(timeout));
            }
            if let Err(why) = self.wait(left) {
                if !self.ring.submission().is_empty() {
                    // The next command would submit this entry too, whose answer buffer no longer exists.
                    self.ring = ring()?;
                    return Err(why);
                }
                // The driver has the command, and will complete it.
                std::thread::sleep(WAIT_AGAIN);
            }
        }
    }

    /// Submits the pending entries and waits for a completion, a signal, or the end of `left`.
    fn wait(&self, left: Duration) -> Result<(), ControlError> {
        // A wait without a timeout takes a step an hour.
        let left = types::Timespec::from(left.min(Duration::from_secs(3600)));
        let arguments = types::SubmitArgs::new().timespec(&left);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::TIME | Errno::INTR)) => Ok(()),
            Err(e) => Err(ControlError::system("waiting for the ublk driver")(e)),
        }
    }
}

fn ring() -> Result<IoUring<squeue::Entry128, cqueue::Entry>, ControlError> {
    IoUring::builder().build(4).map_err(ControlError::system("setting up an io_uring"))
}

/// One command.
#[derive(Clone, Copy, Debug)]
struct Command {
    /// For errors.
    name: &'static str,
    number: u32,
    device_id: u32,
    data: u64,
    /// Of memory that the driver reads or fills.
    address: u64,
    len: u16,
}

impl Command {
    const fn new(name: &'static str, number: u32, device_id: u32) -> Self {
        Self { name, number, device_id, data: 0, address: 0, len: 0 }
    }

    /// With the number of this process, which becomes the device's server.
    fn of_this_process(self) -> Self {
        Self { data: std::process::id().into(), ..self }
    }

    fn structure(&self) -> sys::ublksrv_ctrl_cmd {
        sys::ublksrv_ctrl_cmd {
            dev_id: self.device_id,
            // The command is about the device; a queue is named by `data`.
            queue_id: u16::MAX,
            len: self.len,
            addr: self.address,
            data: [self.data],
            ..Default::default()
        }
    }
}

const fn len_of<T>() -> u16 {
    const { assert!(size_of::<T>() <= u16::MAX as usize) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted just above")]
    let len_bytes = size_of::<T>() as u16;
    len_bytes
}

/// The members of a set of CPUs, a bit for each.
fn members(set: &[u64]) -> impl Iterator<Item = usize> {
    let bits = set
        .iter()
        .enumerate()
        .flat_map(|(index, word)| (0..64).map(move |bit| (index * 64 + bit, word >> bit & 1)));
    bits.filter(|(_, bit)| *bit == 1).map(|(cpu, _)| cpu)
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
        assert!(matches!(refused, ControlError::System { .. }), "{refused}");
        assert!(control.ring.submission().is_empty(), "the next command would submit it, too");
        control.info(0).unwrap();
    }

    /// A driver that knows no command.
    fn ignorant() -> Control {
        let file = File::open("/").unwrap();
        Control { file, ring: ring().unwrap(), token: 0 }
    }

    #[test]
    fn driver_without_command_has_no_features() {
        assert_eq!(ignorant().features().unwrap(), 0);
    }

    #[test]
    fn refusal_names_command_and_device() {
        let refused = ignorant().start(7).unwrap_err();
        let ControlError::Refused { command, device_id, errno } = refused else { panic!("{refused}") };
        assert_eq!((command, device_id, errno), ("start", 7, Errno::OPNOTSUPP));
    }

    #[test]
    fn cpus_are_bits() {
        assert_eq!(members(&[0; CPU_WORDS]).count(), 0);
        assert_eq!(members(&[1 << 63 | 1, 0, 1 << 2]).collect::<Vec<_>>(), [0, 63, 130]);
        assert_eq!(members(&[u64::MAX; CPU_WORDS]).last(), Some(8191));
    }

    #[test]
    fn command_of_this_process_has_its_number() {
        let command = Command::new("start", 0, 3).of_this_process().structure();
        assert_eq!((command.dev_id, command.queue_id), (3, u16::MAX));
        assert_eq!(command.data, [u64::from(std::process::id())]);
        assert_eq!((command.addr, command.len), (0, 0));
    }
}
