//! The threads that serve the queues.

use super::shutdown::Message;
use super::transport::{Device, QueueConfig, QueueEnd, QueueIo, TransportError};
use super::{Options, UblkError};
use crate::Engine;
use pm_core::Pmem;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// How a queue's thread ended.
type Outcome = Result<QueueEnd, UblkError>;

/// One thread a queue.
pub(super) struct Workers {
    device_id: u32,
    threads: Vec<JoinHandle<Outcome>>,
    /// A message a queue: its tags are with the driver. A queue that fails before drops its sender instead.
    ready: Vec<Receiver<()>>,
    leave: OwnedFd,
}

/// Tells the serving thread that a queue has ended, even if it panicked.
struct TellEnd(Sender<Message>);

impl Drop for TellEnd {
    fn drop(&mut self) {
        // Without a receiver nobody is interested any more.
        self.0.send(Message::QueueEnded).unwrap_or(());
    }
}

impl Workers {
    /// Starts a thread for each queue of `device`.
    pub(super) fn start<D: Device, P: Pmem + Send + Sync + 'static>(
        device: &D,
        engine: &Arc<Engine<P>>,
        options: &Options,
        messages: &Sender<Message>,
    ) -> Result<Self, UblkError> {
        let info = device.info();
        let device_id = info.device_id;
        // Readable for every queue from the first write on: nobody reads it.
        let leave = eventfd(0, EventfdFlags::CLOEXEC).map_err(UblkError::system("making an eventfd"))?;
        let mut workers = Self { device_id, threads: Vec::new(), ready: Vec::new(), leave };
        for queue in 0..info.queues {
            let failed =
                |reason: TransportError| UblkError::Queue { device_id, queue, reason: reason.to_string() };
            let cpus = device.cpus(queue, &options.affinity).map_err(failed)?;
            let config = QueueConfig { queue, spin: options.spin, leave: workers.leave.as_raw_fd() };
            let (io, engine) = (device.io(), Arc::clone(engine));
            let (is_ready, ready) = channel();
            let tell_end = TellEnd(messages.clone());
            let serve = move || {
                let _tell_end = tell_end;
                if let Some(cpus) = cpus {
                    pin(&cpus)?;
                }
                let handler = |descriptor: super::request::Descriptor, buffer: &mut [u8]| {
                    descriptor.execute(&engine, buffer)
                };
                let ready = || is_ready.send(()).unwrap_or(());
                let end = io.serve(&config, handler, ready);
                end.map_err(|e| UblkError::Queue { device_id, queue, reason: e.to_string() })
            };
            let thread = std::thread::Builder::new().name(format!("ublk{device_id}-q{queue}")).spawn(serve);
            match thread {
                Ok(thread) => workers.threads.push(thread),
                Err(e) => {
                    workers.dismiss()?;
                    return Err(UblkError::system("starting a queue's thread")(e));
                }
            }
            workers.ready.push(ready);
        }
        Ok(workers)
    }

    /// Waits until every queue's tags are with the driver, or one has failed: [`Workers::join`] tells why.
    pub(super) fn first_not_ready(&self) -> Option<u16> {
        (0..).zip(&self.ready).find(|(_, ready)| ready.recv().is_err()).map(|(queue, _)| queue)
    }

    /// Asks the threads to leave their queues, whatever state the device is in.
    pub(super) fn dismiss(&self) -> Result<(), UblkError> {
        // Eight bytes that are not zero, whichever end comes first.
        rustix::io::write(&self.leave, &[1; 8]).map_err(UblkError::system("asking the queues to end"))?;
        Ok(())
    }

    /// Waits for the threads' ends. The first failure counts; without one, whether the device was stopped.
    pub(super) fn join(self) -> Result<QueueEnd, UblkError> {
        let mut outcome = Ok(QueueEnd::Left);
        for (queue, thread) in (0..).zip(self.threads) {
            let ended = thread.join().unwrap_or_else(|_| {
                Err(UblkError::Queue {
                    device_id: self.device_id,
                    queue,
                    reason: "its thread panicked".into(),
                })
            });
            if outcome.is_ok() {
                outcome = match (outcome, ended) {
                    (Ok(QueueEnd::Left), Ok(end)) => Ok(end),
                    (stopped, Ok(_)) => stopped,
                    (_, Err(e)) => Err(e),
                };
            }
        }
        outcome
    }
}

/// Pins the calling thread.
fn pin(cpus: &[usize]) -> Result<(), UblkError> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    sched_setaffinity(None, &set).map_err(UblkError::system("pinning a queue's thread"))
}
