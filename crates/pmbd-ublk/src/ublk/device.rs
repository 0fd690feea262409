//! A device, by libublk 0.4: adding it, starting it, taking it over.
//!
//! Only this file and [`queue`](super::queue) use that crate: its commands that add, recover and start a device, and a queue's ring and
//! descriptors. They do not use its `run_target`, which stops the device at the end and pins threads; its executors, as a request completes
//! before another one could be started; nor its state files, as the driver itself keeps what recovery needs.

use super::error::{DriverError, UblkError};
use super::info::DeviceInfo;
use super::options::Affinity;
use super::spec::Spec;
use libublk::UblkFlags;
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder, UblkQueueAffinity};
use libublk::io::UblkDev;
use libublk_rs_sys as sys;
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A device, on the thread that made it: its commands use a ring of that thread.
pub(super) struct Device {
    control: UblkCtrl,
    device_id: u32,
    params: sys::ublk_params,
}

impl Device {
    /// Adds a new device. It stays until it is deleted, even if the result is dropped.
    pub(super) fn add(spec: &Spec) -> Result<Self, DriverError> {
        let id = spec.device_id.map_or(Ok(-1), id_of)?;
        let control = open(id, spec, UblkFlags::UBLK_DEV_F_ADD_DEV)?;
        // Otherwise dropping `control` would delete the device, and wait for that without a limit.
        control.disown();
        Ok(Self { device_id: control.dev_info().dev_id, control, params: spec.params })
    }

    /// A device that waits for a server, and whose counts `spec` has. Changes nothing.
    pub(super) fn waiting(device_id: u32, spec: &Spec) -> Result<Self, UblkError> {
        let _state = StateFile::create(device_id);
        let control = id_of(device_id).and_then(|id| open(id, spec, UblkFlags::UBLK_DEV_F_RECOVER_DEV));
        let control = control.map_err(DriverError::to("take over", device_id))?;
        Ok(Self { control, device_id, params: spec.params })
    }

    /// Begins the recovery of a waiting device: the driver drops its last server. Requires
    /// [`ensure_daemons`](super::daemons::ensure_daemons) before, and that all other steps that can fail are done.
    pub(super) fn begin_recovery(&self) -> Result<(), UblkError> {
        checked(self.control.start_user_recover()).map_err(DriverError::to("take over", self.device_id))
    }

    /// Becomes the device's server. The result is for the queues' threads.
    pub(super) fn attach(&self) -> Result<Arc<UblkDev>, UblkError> {
        let params = self.params;
        let set_up = |device: &mut UblkDev| {
            device.tgt.dev_size = params.basic.dev_sectors << 9;
            device.tgt.params = params;
            Ok(())
        };
        let device = UblkDev::new("pmbd".into(), set_up, &self.control).map_err(DriverError::from);
        Ok(Arc::new(device.map_err(DriverError::to("open", self.device_id))?))
    }

    /// Starts a new device, or resumes a recovered one. Every queue must have fetched its tags.
    pub(super) fn start(&self, io: &UblkDev) -> Result<(), UblkError> {
        checked(self.control.start_dev(io)).map_err(DriverError::to("start", self.device_id))
    }

    /// What the driver granted.
    pub(super) fn info(&self) -> DeviceInfo {
        DeviceInfo::from(&self.control.dev_info())
    }

    /// The CPUs on which a queue's thread is to run; `None` for any.
    pub(super) fn cpus(&self, queue: u16, affinity: &Affinity) -> Result<Option<Vec<usize>>, DriverError> {
        match affinity {
            Affinity::Unpinned => Ok(None),
            Affinity::Cpus(cpus) => {
                Ok(cpus.get(usize::from(queue) % cpus.len().max(1)).map(|cpu| vec![*cpu]))
            }
            Affinity::Submitters => {
                let mut cpus = UblkQueueAffinity::new();
                checked(self.control.get_queue_affinity(queue.into(), &mut cpus))?;
                Ok(Some(cpus.to_bits_vec()))
            }
        }
    }
}

fn open(id: i32, spec: &Spec, flags: UblkFlags) -> Result<UblkCtrl, DriverError> {
    Ok(UblkCtrlBuilder::default()
        .name("pmbd")
        .id(id)
        .nr_queues(spec.queues)
        .depth(spec.depth)
        .io_buf_bytes(spec.max_io_bytes)
        .ctrl_flags(spec.features.bits())
        .ctrl_target_flags(spec.identity.mark())
        .dev_flags(flags)
        .build()?)
}

fn id_of(device_id: u32) -> Result<i32, DriverError> {
    i32::try_from(device_id).map_err(|_| DriverError::Errno(Errno::INVAL))
}

/// libublk takes `EBUSY` for a success.
fn checked(answer: Result<i32, libublk::UblkError>) -> Result<(), DriverError> {
    match answer? {
        code if code < 0 => Err(DriverError::Errno(Errno::from_raw_os_error(-code))),
        _ => Ok(()),
    }
}

/// An empty state file of libublk, while a device is opened for recovery.
///
/// libublk reads the file, complains on standard error if there is none, and writes the contents back later, wherever the name then leads.
/// An empty file silences it and keeps it from writing.
struct StateFile(Option<PathBuf>);

impl StateFile {
    /// Creates the file, if that can be done safely. Otherwise libublk complains, with no other effect.
    fn create(device_id: u32) -> Self {
        let path = PathBuf::from(UblkCtrl::run_dir()).join(format!("{device_id:04}.json"));
        let write = || -> std::io::Result<()> {
            if let Some(dir) = path.parent() {
                std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            }
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            // Follows no link and overwrites nothing.
            File::create_new(&path)?.write_all(b"{}")
        };
        Self(write().is_ok().then_some(path))
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // A file that is left is empty, and the next recovery replaces it.
            std::fs::remove_file(path).unwrap_or(());
        }
    }
}
