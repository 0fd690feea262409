//! A device of this server: adding it, starting it, taking it over.

use super::error::UblkError;
use super::info::DeviceInfo;
use super::options::Affinity;
use super::spec::Spec;
use pm_ublk::{ANY_DEVICE, CharDevice, Control, ControlError, DeviceRecord, sys};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time that udev takes to make the node of a new device and to set its permissions.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest time that the driver takes to notice that the last server has ended.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two attempts meanwhile.
const RETRY: Duration = Duration::from_millis(10);

/// A device that is, or is to be, served by this process.
pub(super) struct Device {
    record: DeviceRecord,
    params: sys::ublk_params,
    /// Whether it had a server before.
    waited: bool,
}

impl Device {
    /// Adds a new device. It stays until it is deleted, even if the result is dropped.
    pub(super) fn add(control: &mut Control, spec: &Spec) -> Result<Self, UblkError> {
        let added = control.add(&sys::ublksrv_ctrl_dev_info {
            nr_hw_queues: spec.queues,
            queue_depth: spec.depth,
            max_io_buf_bytes: spec.max_io_bytes,
            dev_id: spec.device_id.unwrap_or(ANY_DEVICE),
            flags: spec.features.bits(),
            ublksrv_flags: spec.identity.mark(),
            ..Default::default()
        })?;
        Ok(Self { record: added, params: spec.params, waited: false })
    }

    /// A device that waits for a server, and whose counts `spec` has. Changes nothing.
    pub(super) fn waiting(control: &mut Control, device_id: u32, spec: &Spec) -> Result<Self, UblkError> {
        Ok(Self { record: control.info(device_id)?, params: spec.params, waited: true })
    }

    /// Begins the recovery of a waiting device: the driver drops its last server. Requires
    /// [`ensure_daemons`](super::daemons::ensure_daemons) before, and that all other steps that can fail are done.
    pub(super) fn begin_recovery(&self, control: &mut Control) -> Result<(), UblkError> {
        let started = Instant::now();
        loop {
            match control.begin_recovery(self.record.dev_id) {
                Err(ControlError::Refused { errno: Errno::BUSY, .. })
                    if started.elapsed() < RECOVERY_TIMEOUT =>
                {
                    std::thread::sleep(RETRY);
                }
                result => return Ok(result?),
            }
        }
    }

    /// Becomes the device's server. The result is for the queues' threads.
    pub(super) fn attach(&self) -> Result<Arc<CharDevice>, UblkError> {
        let device = open(self.record.dev_id, NODE_TIMEOUT, |errno| {
            matches!(errno, Errno::NOENT | Errno::ACCESS | Errno::BUSY | Errno::NODEV | Errno::NXIO)
        })?;
        Ok(Arc::new(device))
    }

    /// Starts a new device, or resumes a recovered one. Every queue must have fetched its tags.
    pub(super) fn start(&self, control: &mut Control) -> Result<(), UblkError> {
        let device_id = self.record.dev_id;
        if self.waited {
            return Ok(control.end_recovery(device_id)?);
        }
        control.set_params(device_id, &self.params)?;
        Ok(control.start(device_id)?)
    }

    /// What the driver granted.
    pub(super) fn info(&self) -> DeviceInfo {
        DeviceInfo::from(&*self.record)
    }

    /// What the queues are served by.
    pub(super) const fn record(&self) -> DeviceRecord {
        self.record
    }

    /// The CPUs on which a queue's thread is to run; `None` for any.
    pub(super) fn cpus(
        &self,
        control: &mut Control,
        queue: u16,
        affinity: &Affinity,
    ) -> Result<Option<Vec<usize>>, UblkError> {
        match affinity {
            Affinity::Unpinned => Ok(None),
            Affinity::Cpus(cpus) => {
                Ok(cpus.get(usize::from(queue) % cpus.len().max(1)).map(|cpu| vec![*cpu]))
            }
            Affinity::Submitters => Ok(Some(control.queue_cpus(self.record.dev_id, queue)?)),
        }
    }
}

/// Opens a character device, and tries again for up to `timeout` after an error that `passes` says will pass.
pub(super) fn open(
    device_id: u32,
    timeout: Duration,
    mut passes: impl FnMut(Errno) -> bool,
) -> Result<CharDevice, UblkError> {
    let started = Instant::now();
    loop {
        match CharDevice::open(device_id) {
            Err(e) if Errno::from_io_error(&e).is_some_and(&mut passes) && started.elapsed() < timeout => {
                std::thread::sleep(RETRY);
            }
            result => return result.map_err(UblkError::system("opening the ublk character device")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No machine has a device of this number.
    const NONE: u32 = u32::MAX;

    #[test]
    fn missing_node_is_awaited_for_a_limited_time() {
        let timeout = Duration::from_millis(50);
        let started = Instant::now();
        let missing = open(NONE, timeout, |errno| errno == Errno::NOENT).map(drop).unwrap_err();
        assert!(matches!(missing, UblkError::System { .. }), "{missing}");
        assert!(started.elapsed() >= timeout);
        let mut tries = 0;
        let busy = open(NONE, Duration::MAX, |errno| {
            tries += 1;
            errno == Errno::BUSY
        });
        assert!(busy.is_err() && tries == 1, "another error is returned at once");
    }
}
