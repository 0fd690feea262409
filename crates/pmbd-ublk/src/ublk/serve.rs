//! The life of a device, from its addition or takeover to its removal.

use super::daemons::ensure_daemons;
use super::device::Device;
use super::devices::{self, PoolDevice, find};
use super::error::{UblkError, Usage};
use super::info::{DeviceIdentity, DeviceInfo, DeviceState, Features};
use super::options::Options;
use super::queue::QueueEnd;
use super::shutdown::{Message, Shutdown, ShutdownSignal};
use super::spec::Spec;
use super::workers::Workers;
use super::{mounts, usage};
use crate::engine::Engine;
use pm_core::Pmem;
use pm_ublk::{Control, ControlError};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::sync::mpsc::UnboundedSender;

/// What the driver granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// N of `/dev/ublkbN`.
    pub device_id: u32,
    /// Whether the device existed already, and this is its next server, which keeps its counts.
    pub recovered: bool,
    /// Queues; the driver grants no more than there are CPUs.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Longest read or write.
    pub max_io_bytes: u32,
    /// The features of the device.
    pub features: Features,
    /// Requested features that were not granted. With [`Features::USER_RECOVERY`] among them the device dies with its server.
    pub dropped: Features,
}

/// What happens while serving.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A dead device of this pool, which never started, or was stopped and not deleted, was removed.
    RemainsRemoved {
        /// The number that it had.
        device_id: u32,
    },
    /// The device is up.
    Up {
        /// `/dev/ublkbN`.
        path: PathBuf,
        /// What the driver granted.
        granted: Granted,
    },
    /// [`Shutdown::Remove`] was requested, but the device is in use and stays up.
    StillInUse(Usage),
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The device was removed: as requested, or by another process that stopped it.
    Removed,
    /// The device waits for its next server.
    HandedOver,
}

/// Serves `engine` as a block device until `shutdown` requests the end, or another process stops the device.
///
/// If a device of the same `identity` waits for a server, this becomes its server, and requests that were in flight are run again;
/// otherwise a new device is made. What happens is sent to `events`, which may have no receiver.
///
/// # Errors
/// See [`UblkError`]. A new device that cannot be started is removed. A device that fails while it is served, or was to be taken over,
/// waits for another server.
///
/// # Durability
/// That of [`Engine`]: without a volatile cache, each completed write. A write that was in flight when a server died is given to the next,
/// so it can run twice before it completes once.
pub fn serve<P: Pmem + Send + Sync + 'static>(
    engine: &Arc<Engine<P>>,
    options: &Options,
    identity: DeviceIdentity,
    shutdown: ShutdownSignal,
    events: UnboundedSender<Event>,
) -> Result<Ended, UblkError> {
    options.check()?;
    let mut control = Control::open()?;
    let spec = Spec::new(engine, options, identity);
    let mut server = Server { engine, options, messages: shutdown.sender(), events, attempts: 0 };
    let (up, recovered) = match find(&mut control, identity)? {
        PoolDevice::Waiting(waiting) => {
            let spec = spec.for_takeover(&waiting, &control.params(waiting.device_id)?)?;
            if engine.has_discarded() {
                tracing::error!(
                    device = waiting.device_id,
                    "completed writes of the last server were discarded; flushes of the device will fail until it is removed"
                );
                engine.fail_flushes();
            }
            (server.take_over(&mut control, &waiting, &spec)?, true)
        }
        PoolDevice::Dead(device) => {
            control.delete(device.device_id, options.removal_timeout)?;
            server.report(Event::RemainsRemoved { device_id: device.device_id });
            (server.make(&mut control, &spec)?, false)
        }
        PoolDevice::None => (server.make(&mut control, &spec)?, false),
    };
    let granted = granted(&up.device.info(), &spec, recovered);
    let path = PathBuf::from(format!("/dev/ublkb{}", granted.device_id));
    if recovered && let Err(why) = mounts::release(&path) {
        up.workers.dismiss()?;
        up.workers.join()?;
        return Err(why);
    }
    server.report(Event::Up { path, granted });
    server.run(&mut control, up, &shutdown)
}

/// The attempts at a takeover if the driver aborts its queues.
const TAKE_OVER_ATTEMPTS: u32 = 4;

/// A device that is served, and its queues' threads.
struct Up {
    device: Device,
    workers: Workers,
}

/// One call of [`serve`].
struct Server<'a, P: Pmem> {
    engine: &'a Arc<Engine<P>>,
    options: &'a Options,
    messages: Sender<Message>,
    events: UnboundedSender<Event>,
    attempts: u32,
}

impl<P: Pmem + Send + Sync + 'static> Server<'_, P> {
    /// Makes a device and starts it. On an error the device is removed again.
    fn make(&mut self, control: &mut Control, spec: &Spec) -> Result<Up, UblkError> {
        let timeout = self.options.removal_timeout;
        let device = Self::add(control, spec)?;
        let device_id = device.info().device_id;
        let mut workers = match self.prepare(control, &device) {
            Ok(workers) => workers,
            Err(why) => {
                control.delete(device_id, timeout)?;
                return Err(why);
            }
        };
        match begin(control, &device, &mut workers) {
            Ok(()) => Ok(Up { device, workers }),
            Err(why) => {
                control.stop(device_id, timeout)?;
                // The queues end with their device; if one failed, its error is the cause.
                let ended = workers.join();
                control.delete(device_id, timeout)?;
                Err(ended.err().unwrap_or(why))
            }
        }
    }

    /// Adds a device.
    fn add(control: &mut Control, spec: &Spec) -> Result<Device, UblkError> {
        if let Some(device_id) = spec.device_id.filter(|id| devices::exists(*id)) {
            return Err(UblkError::IdTaken { device_id });
        }
        Device::add(control, spec)
    }

    /// Becomes the server of a device that waits. Everything that needs descriptors, memory or threads happens before
    /// [`Device::begin_recovery`], until which nothing changes for the device. If a later step fails, the device waits again.
    fn take_over(
        &mut self,
        control: &mut Control,
        waiting: &DeviceInfo,
        spec: &Spec,
    ) -> Result<Up, UblkError> {
        loop {
            let device = Device::waiting(control, waiting.device_id, spec)?;
            let mut workers = self.prepare(control, &device)?;
            let begun = ensure_daemons(waiting)
                .and_then(|_| device.begin_recovery(control))
                .and_then(|()| begin(control, &device, &mut workers));
            let Err(why) = begun else { return Ok(Up { device, workers }) };
            workers.dismiss()?;
            match workers.join()? {
                // The driver aborted the tags, as it does when deferred work of the last server's end runs late.
                QueueEnd::Stopped if self.attempts < TAKE_OVER_ATTEMPTS => {
                    tracing::warn!(device = waiting.device_id, "the driver aborted the queues; trying again");
                }
                _ => return Err(why),
            }
        }
    }

    fn prepare(&mut self, control: &mut Control, device: &Device) -> Result<Workers, UblkError> {
        self.attempts += 1;
        Workers::prepare(control, device, self.engine, self.options, &self.messages, self.attempts)
    }

    /// Serves until the end.
    fn run(&self, control: &mut Control, up: Up, shutdown: &ShutdownSignal) -> Result<Ended, UblkError> {
        let Up { device, workers } = up;
        let device_id = device.info().device_id;
        let end = self.wait_for_end(control, device_id, &workers, shutdown);
        // The queues of a stopped device end by themselves. After a hand-over, or when one queue has failed, they are dismissed.
        let stopped = is_stopped(control, device_id)?;
        if !stopped {
            workers.dismiss()?;
        }
        let ended = workers.join();
        end?;
        match ended? {
            QueueEnd::Left => Ok(Ended::HandedOver),
            // The device waits for another server, so this one does not delete it.
            QueueEnd::Stopped if !stopped => Err(UblkError::Aborted { device_id }),
            QueueEnd::Stopped => {
                control.delete(device_id, self.options.removal_timeout)?;
                usage::check_deleted(device_id)?;
                Ok(Ended::Removed)
            }
        }
    }

    /// Waits until the end is requested, or a queue has ended, and stops the device if that was requested.
    fn wait_for_end(
        &self,
        control: &mut Control,
        device_id: u32,
        workers: &Workers,
        shutdown: &ShutdownSignal,
    ) -> Result<(), UblkError> {
        let timeout = self.options.removal_timeout;
        loop {
            match shutdown.wait() {
                // Of a failed attempt to take over.
                Message::QueueEnded(attempt) if !workers.is_of(attempt) => {}
                Message::QueueEnded(_) | Message::Shutdown(Shutdown::HandOver) => return Ok(()),
                Message::Shutdown(Shutdown::RemoveForced) => return Ok(control.stop(device_id, timeout)?),
                Message::Shutdown(Shutdown::Remove) => match usage::claim(device_id) {
                    // Held until the device is stopped, so that it cannot be mounted in between.
                    Ok(_claim) => return Ok(control.stop(device_id, timeout)?),
                    Err(UblkError::InUse { usage, .. }) => self.report(Event::StillInUse(usage)),
                    Err(other) => return Err(other),
                },
            }
        }
    }

    fn report(&self, event: Event) {
        // Serving does not depend on a receiver.
        self.events.send(event).unwrap_or(());
    }
}

/// Passes the device to its queues' threads, and starts it when every queue is ready. A queue that fails after that sends a message, which
/// is received as soon as serving begins.
fn begin(control: &mut Control, device: &Device, workers: &mut Workers) -> Result<(), UblkError> {
    let device_id = device.info().device_id;
    let ended = |queue, reason: &str| UblkError::Queue { device_id, queue, reason: reason.into() };
    let io = device.attach()?;
    workers.begin(&io);
    if let Some(queue) = workers.first_not_ready() {
        return Err(ended(queue, "it ended before it began"));
    }
    // The driver must not resume a queue whose tags it has aborted.
    if workers.any_ended() {
        return Err(ended(0, "the driver aborted its tags"));
    }
    device.start(control)
}

/// Whether the device was stopped, or is gone.
fn is_stopped(control: &mut Control, device_id: u32) -> Result<bool, UblkError> {
    match control.info(device_id) {
        Ok(info) => Ok(DeviceState::from(info.state) == DeviceState::Dead),
        Err(ControlError::NoDevice { .. }) => Ok(true),
        Err(other) => Err(other.into()),
    }
}

fn granted(info: &DeviceInfo, spec: &Spec, recovered: bool) -> Granted {
    Granted {
        device_id: info.device_id,
        recovered,
        queues: info.queues,
        depth: info.depth,
        max_io_bytes: info.max_io_bytes,
        features: info.features,
        dropped: spec.features.difference(info.features),
    }
}
