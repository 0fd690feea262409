//! The life of a device, from its addition or recovery to its removal.

use super::control::{Control, NO_DEVICE};
use super::libublk::Libublk;
use super::recover::{Found, compatible, find};
use super::shutdown::{Message, Shutdown, ShutdownSignal};
use super::transport::{Device, QueueEnd, Spec, TransportError};
use super::workers::Workers;
use super::{
    DeviceIdentity, DeviceState, Features, Options, UblkError, UblkUnavailable, Usage, device, namespace, remove,
};
use crate::Engine;
use pm_core::Pmem;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;

/// What the driver granted, beside what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// N of `/dev/ublkbN`.
    pub device_id: u32,
    /// Whether the device was there already, and this is its next server. Its counts are then as they were.
    pub recovered: bool,
    /// Queues; the driver gives no more than there are CPUs.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Longest read or write.
    pub max_io_bytes: u32,
    /// What the device can do.
    pub features: Features,
    /// What was asked for and dropped. With [`Features::USER_RECOVERY`] in here the device dies with its server.
    pub dropped: Features,
}

/// What happens while serving.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A device of this pool that never came up, or was stopped and not deleted, was cleared away.
    RemainsRemoved {
        /// The number that it had.
        device_id: u32,
    },
    /// The device is there.
    Up {
        /// `/dev/ublkbN`.
        path: PathBuf,
        /// What it is.
        granted: Granted,
    },
    /// [`Shutdown::Remove`] was asked for, but the device is in use; it is served on.
    StillInUse(Usage),
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The device is gone: it was removed as asked, or stopped by somebody else.
    Removed,
    /// The device waits for its next server.
    HandedOver,
}

/// Serves `engine` as a block device until it is asked to end by `shutdown` or the device is stopped from outside.
///
/// If a device of the same `identity` waits for a server, this becomes its server, and requests that were in flight
/// are run again; otherwise a new device is made. `on_event` is called on this thread.
///
/// # Errors
/// See [`UblkError`]. A device that was made is removed again when it cannot be started. One that fails while it is
/// served, or that was to be taken over, is left to wait for another server.
///
/// # Durability
/// That of [`Engine`]: without a volatile cache, each completed write. Requests in flight when a server dies are given
/// to the next, so a write can be run twice, and never after a later one to the same place has completed.
pub fn serve<P, F>(
    engine: &Arc<Engine<P>>,
    options: &Options,
    identity: DeviceIdentity,
    shutdown: ShutdownSignal,
    mut on_event: F,
) -> Result<Ended, UblkError>
where
    P: Pmem + Send + Sync + 'static,
    F: FnMut(Event),
{
    options.check()?;
    let mut control = Control::open()?;
    let spec = Spec::new(engine, options, identity);
    let (device, recovered) = match find(&mut control, identity)? {
        Found::Waiting(waiting) => {
            let spec = compatible(&waiting, &control.params(waiting.device_id)?, &spec)?;
            let device = Libublk::recover(waiting.device_id, &spec);
            (device.map_err(refused("take over", waiting.device_id))?, true)
        }
        Found::Remains(device) => {
            control.delete(device.device_id, options.removal_timeout)?;
            on_event(Event::RemainsRemoved { device_id: device.device_id });
            (add(&mut control, &spec, options)?, false)
        }
        Found::Nothing => (add(&mut control, &spec, options)?, false),
    };
    let granted = granted(&device, &spec, recovered);
    let workers = Workers::start(&device, engine, options, &shutdown.sender())?;
    if let Err(why) = start(&device, &workers) {
        // The queues of a new device end with it; those of one that waited are asked to, and it waits on.
        if recovered {
            workers.dismiss()?;
        } else {
            control.stop(granted.device_id, options.removal_timeout)?;
        }
        let ended = workers.join();
        drop(device);
        if !recovered {
            control.delete(granted.device_id, options.removal_timeout)?;
        }
        // If a queue failed, that was the cause.
        return Err(ended.err().unwrap_or(why));
    }
    let path = PathBuf::from(format!("/dev/ublkb{}", granted.device_id));
    if recovered && let Err(why) = namespace::let_go(&path) {
        workers.dismiss()?;
        workers.join()?;
        return Err(why);
    }
    on_event(Event::Up { path, granted });
    run(&mut control, device, workers, options, &shutdown, on_event)
}

/// Adds a device.
fn add(control: &mut Control, spec: &Spec, options: &Options) -> Result<Libublk, UblkError> {
    if let Some(device_id) = spec.device_id.filter(|id| device::exists(*id)) {
        return Err(UblkError::IdTaken { device_id });
    }
    Libublk::add(spec).map_err(|why| {
        let error = refused("add", spec.device_id.unwrap_or(NO_DEVICE))(why);
        // The driver may have added it before the library failed.
        match find(control, spec.identity) {
            Ok(Found::Remains(left)) => {
                control.delete(left.device_id, options.removal_timeout).err().unwrap_or(error)
            }
            _ => error,
        }
    })
}

/// Starts the device when every queue is ready. A queue that fails after that has left a message, which is found as
/// soon as serving begins.
fn start(device: &Libublk, workers: &Workers) -> Result<(), UblkError> {
    let device_id = device.info().device_id;
    if let Some(queue) = workers.first_not_ready() {
        return Err(UblkError::Queue { device_id, queue, reason: "it ended before it began".into() });
    }
    device.start().map_err(refused("start", device_id))
}

/// Serves until the end.
fn run<F: FnMut(Event)>(
    control: &mut Control,
    device: Libublk,
    workers: Workers,
    options: &Options,
    shutdown: &ShutdownSignal,
    on_event: F,
) -> Result<Ended, UblkError> {
    let device_id = device.info().device_id;
    let end = wait_for_end(control, device_id, options, shutdown, on_event);
    // What has been stopped ends by itself. Everything else is asked to: a hand-over, or a queue that failed and
    // takes the others with it.
    if !is_stopped(control, device_id)? {
        workers.dismiss()?;
    }
    let ended = workers.join();
    drop(device);
    end?;
    match ended? {
        QueueEnd::Left => Ok(Ended::HandedOver),
        QueueEnd::Stopped => {
            control.delete(device_id, options.removal_timeout)?;
            remove::gone(device_id)?;
            Ok(Ended::Removed)
        }
    }
}

/// Waits until the server is asked to end, or one of its queues has ended, and stops the device if that was asked.
fn wait_for_end<F: FnMut(Event)>(
    control: &mut Control,
    device_id: u32,
    options: &Options,
    shutdown: &ShutdownSignal,
    mut on_event: F,
) -> Result<(), UblkError> {
    loop {
        match shutdown.wait() {
            Message::QueueEnded | Message::Shutdown(Shutdown::HandOver) => return Ok(()),
            Message::Shutdown(Shutdown::RemoveForced) => {
                return control.stop(device_id, options.removal_timeout);
            }
            Message::Shutdown(Shutdown::Remove) => match remove::claim(device_id) {
                // Held until the device is stopped, so that nobody mounts it in between.
                Ok(_claim) => return control.stop(device_id, options.removal_timeout),
                Err(UblkError::InUse { usage, .. }) => on_event(Event::StillInUse(usage)),
                Err(other) => return Err(other),
            },
        }
    }
}

/// Whether the device was stopped, or is gone.
fn is_stopped(control: &mut Control, device_id: u32) -> Result<bool, UblkError> {
    match control.info(device_id) {
        Ok(info) => Ok(info.state == DeviceState::Dead),
        Err(UblkError::NoDevice { .. }) => Ok(true),
        Err(other) => Err(other),
    }
}

/// What the driver made of what it was asked for.
fn granted(device: &Libublk, spec: &Spec, recovered: bool) -> Granted {
    let info = device.info();
    Granted {
        device_id: info.device_id,
        recovered,
        queues: info.queues,
        depth: info.depth,
        max_io_bytes: info.max_io_bytes,
        features: info.features,
        dropped: spec.features.without(info.features),
    }
}

/// For `map_err`: what the library or the driver said to `command`.
fn refused(command: &'static str, device_id: u32) -> impl FnOnce(TransportError) -> UblkError {
    move |why| match why {
        TransportError::Errno(Errno::PERM | Errno::ACCESS) => UblkUnavailable::NoPermission.into(),
        TransportError::Errno(errno) => UblkError::Refused { command, device_id, errno },
        TransportError::Library(reason) => UblkUnavailable::Unusable { reason }.into(),
    }
}
