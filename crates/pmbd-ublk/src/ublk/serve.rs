//! The life of a device, from its addition or recovery to its removal.

use super::control::{Control, NO_DEVICE};
use super::libublk::{Libublk, LibublkIo};
use super::recover::{Found, compatible, find};
use super::settle::settle;
use super::shutdown::{Message, Shutdown, ShutdownSignal};
use super::transport::{Device, QueueEnd, Spec, TransportError};
use super::workers::Workers;
use super::{
    DeviceIdentity, DeviceInfo, DeviceState, Features, Options, UblkError, UblkUnavailable, Usage, device,
    namespace, remove,
};
use crate::Engine;
use pm_core::Pmem;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

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
    /// What was asked for and dropped. With [`Features::USER_RECOVERY`] in here the device dies with its
    /// server.
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

/// Serves `engine` as a block device until it is asked to end by `shutdown` or the device is stopped from
/// outside.
///
/// If a device of the same `identity` waits for a server, this becomes its server, and requests that were in
/// flight are run again; otherwise a new device is made. `on_event` is called on this thread.
///
/// # Errors
/// See [`UblkError`]. A device that was made is removed again when it cannot be started. One that fails while
/// it is served, or that was to be taken over, is left to wait for another server.
///
/// # Durability
/// That of [`Engine`]: without a volatile cache, each completed write. A write that was in flight when a
/// server died is given to the next, so it can run twice before it completes once.
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
    let mut server = Server { engine, options, messages: shutdown.sender(), attempts: 0 };
    let (up, recovered) = match find(&mut control, identity)? {
        Found::Waiting(waiting) => {
            let spec = compatible(&waiting, &control.params(waiting.device_id)?, &spec)?;
            (server.take_over(&waiting, &spec)?, true)
        }
        Found::Remains(device) => {
            control.delete(device.device_id, options.removal_timeout)?;
            on_event(Event::RemainsRemoved { device_id: device.device_id });
            (server.make(&mut control, &spec)?, false)
        }
        Found::Nothing => (server.make(&mut control, &spec)?, false),
    };
    let granted = granted(&up.device, &spec, recovered);
    let path = PathBuf::from(format!("/dev/ublkb{}", granted.device_id));
    if recovered && let Err(why) = namespace::let_go(&path) {
        up.workers.dismiss()?;
        up.workers.join()?;
        return Err(why);
    }
    on_event(Event::Up { path, granted });
    run(&mut control, up, options, &shutdown, on_event)
}

/// How often a takeover is tried whose queues the driver takes back before it ends.
const TAKE_OVER_ATTEMPTS: u32 = 4;

/// A device that is served, and its queues' threads.
struct Up {
    device: Libublk,
    workers: Workers<LibublkIo>,
}

/// What bringing a device up takes.
struct Server<'a, P> {
    engine: &'a Arc<Engine<P>>,
    options: &'a Options,
    messages: Sender<Message>,
    attempts: u32,
}

impl<P: Pmem + Send + Sync + 'static> Server<'_, P> {
    /// Makes a device and serves it. What was made is removed again when that fails.
    fn make(&mut self, control: &mut Control, spec: &Spec) -> Result<Up, UblkError> {
        let mut device = add(control, spec, self.options)?;
        let device_id = device.info().device_id;
        let mut workers = match self.prepare(&device) {
            Ok(workers) => workers,
            Err(why) => {
                drop(device);
                control.delete(device_id, self.options.removal_timeout)?;
                return Err(why);
            }
        };
        match begin(&mut device, &mut workers) {
            Ok(()) => Ok(Up { device, workers }),
            Err(why) => {
                control.stop(device_id, self.options.removal_timeout)?;
                // The queues end with their device; if one failed, that was the cause.
                let ended = workers.join();
                drop(device);
                control.delete(device_id, self.options.removal_timeout)?;
                Err(ended.err().unwrap_or(why))
            }
        }
    }

    /// Becomes the server of a device that waits. Until [`Device::begin_recovery`] nothing changes for the device; all that
    /// needs descriptors, memory or threads happens before. When what follows fails all the same, the device waits for
    /// another try.
    fn take_over(&mut self, waiting: &DeviceInfo, spec: &Spec) -> Result<Up, UblkError> {
        loop {
            let mut device =
                Libublk::waiting(waiting.device_id, spec).map_err(refused("take over", waiting.device_id))?;
            let mut workers = self.prepare(&device)?;
            let begun = settle(waiting)
                .and_then(|_| device.begin_recovery().map_err(refused("take over", waiting.device_id)))
                .and_then(|()| begin(&mut device, &mut workers));
            let Err(why) = begun else { return Ok(Up { device, workers }) };
            workers.dismiss()?;
            match workers.join() {
                Err(cause) => return Err(cause),
                // The driver took the tags back, as it does when work of the last server's end comes late.
                Ok(QueueEnd::Stopped) if self.attempts < TAKE_OVER_ATTEMPTS => {
                    tracing::warn!(
                        device = waiting.device_id,
                        "the driver took the queues back; trying again"
                    );
                }
                Ok(_) => return Err(why),
            }
        }
    }

    fn prepare(&mut self, device: &Libublk) -> Result<Workers<LibublkIo>, UblkError> {
        self.attempts += 1;
        Workers::prepare(device, self.engine, self.options, &self.messages, self.attempts)
    }
}

/// Hands the device to its queues' threads, and starts it when every queue is ready. A queue that fails after that has left
/// a message, which is found as soon as serving begins.
fn begin(device: &mut Libublk, workers: &mut Workers<LibublkIo>) -> Result<(), UblkError> {
    let device_id = device.info().device_id;
    let ended = |queue, reason: &str| UblkError::Queue { device_id, queue, reason: reason.into() };
    let io = device.attach().map_err(refused("open", device_id))?;
    workers.begin(&io);
    if let Some(queue) = workers.first_not_ready() {
        return Err(ended(queue, "it ended before it began"));
    }
    // The driver must not be told to go on with a queue whose tags it has taken back.
    if workers.any_ended() {
        return Err(ended(0, "the driver took its tags back"));
    }
    device.start().map_err(refused("start", device_id))
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

/// Serves until the end.
fn run<F: FnMut(Event)>(
    control: &mut Control,
    up: Up,
    options: &Options,
    shutdown: &ShutdownSignal,
    on_event: F,
) -> Result<Ended, UblkError> {
    let Up { device, workers } = up;
    let device_id = device.info().device_id;
    let end = wait_for_end(control, device_id, &workers, options, shutdown, on_event);
    // What has been stopped ends by itself. Everything else is asked to: a hand-over, or a queue that failed
    // and takes the others with it.
    let stopped = is_stopped(control, device_id)?;
    if !stopped {
        workers.dismiss()?;
    }
    let ended = workers.join();
    drop(device);
    end?;
    match ended? {
        QueueEnd::Left => Ok(Ended::HandedOver),
        // Taken from this server and not stopped: it is not for this server to delete.
        QueueEnd::Stopped if !stopped => Err(UblkError::TakenBack { device_id }),
        QueueEnd::Stopped => {
            control.delete(device_id, options.removal_timeout)?;
            remove::gone(device_id)?;
            Ok(Ended::Removed)
        }
    }
}

/// Waits until the server is asked to end, or one of its queues has ended, and stops the device if that was
/// asked.
fn wait_for_end<F: FnMut(Event)>(
    control: &mut Control,
    device_id: u32,
    workers: &Workers<LibublkIo>,
    options: &Options,
    shutdown: &ShutdownSignal,
    mut on_event: F,
) -> Result<(), UblkError> {
    loop {
        match shutdown.wait() {
            // Of an attempt to take over that failed.
            Message::QueueEnded(attempt) if !workers.is_of(attempt) => {}
            Message::QueueEnded(_) | Message::Shutdown(Shutdown::HandOver) => return Ok(()),
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
