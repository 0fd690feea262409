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

/// One thread a queue, each with its ring and buffers.
pub(super) struct Workers<Io> {
    device_id: u32,
    /// Tells these threads' ends from those of an attempt before.
    attempt: u32,
    threads: Vec<JoinHandle<Outcome>>,
    /// For each queue: where its thread waits for the device. A thread whose sender is dropped leaves.
    begin: Vec<Sender<Arc<Io>>>,
    /// For each queue: a message when the thread is prepared, and one when its tags are with the driver. A queue that fails
    /// before drops its sender instead.
    ready: Vec<Receiver<()>>,
    leave: OwnedFd,
}

/// Tells the serving thread that a queue has ended, even if it panicked.
struct TellEnd(Sender<Message>, u32);

impl Drop for TellEnd {
    fn drop(&mut self) {
        // Without a receiver nobody is interested any more.
        self.0.send(Message::QueueEnded(self.1)).unwrap_or(());
    }
}

impl<Io: QueueIo> Workers<Io> {
    /// Starts a thread for each queue of `device`, and waits until each has its ring and buffers.
    pub(super) fn prepare<D: Device<Io = Io>, P: Pmem + Send + Sync + 'static>(
        device: &D,
        engine: &Arc<Engine<P>>,
        options: &Options,
        messages: &Sender<Message>,
        attempt: u32,
    ) -> Result<Self, UblkError> {
        let info = device.info();
        let device_id = info.device_id;
        // Readable for every queue from the first write on: nobody reads it.
        let leave = eventfd(0, EventfdFlags::CLOEXEC).map_err(UblkError::system("making an eventfd"))?;
        let (threads, begin, ready) = (Vec::new(), Vec::new(), Vec::new());
        let mut workers = Self { device_id, attempt, threads, begin, ready, leave };
        for queue in 0..info.queues {
            let failed = move |reason: TransportError| UblkError::Queue {
                device_id,
                queue,
                reason: reason.to_string(),
            };
            let cpus = device.cpus(queue, &options.affinity).map_err(failed)?;
            let config = QueueConfig { queue, spin: options.spin, leave: workers.leave.as_raw_fd() };
            let engine = Arc::clone(engine);
            let (is_ready, ready) = channel();
            let (begin, device) = channel::<Arc<Io>>();
            let tell_end = TellEnd(messages.clone(), attempt);
            let serve = move || {
                let _tell_end = tell_end;
                if let Some(cpus) = cpus {
                    pin(&cpus)?;
                }
                let prepared = Io::prepare(info.depth, info.max_io_bytes).map_err(failed)?;
                is_ready.send(()).unwrap_or(());
                let Ok(io) = device.recv() else { return Ok(QueueEnd::Left) };
                let handler = |descriptor: super::request::Descriptor, buffer: &mut [u8]| {
                    descriptor.execute(&engine, buffer)
                };
                let ready = || is_ready.send(()).unwrap_or(());
                io.serve(&config, prepared, handler, ready).map_err(failed)
            };
            let thread = std::thread::Builder::new().name(format!("ublk{device_id}-q{queue}")).spawn(serve);
            // The threads that are there leave with `workers`, which has what they wait for.
            workers.threads.push(thread.map_err(UblkError::system("starting a queue's thread"))?);
            workers.begin.push(begin);
            workers.ready.push(ready);
        }
        match workers.first_not_ready() {
            Some(queue) => Err(workers.cause(queue)),
            None => Ok(workers),
        }
    }

    /// Hands the device to the threads. Each fetches its queue's tags.
    pub(super) fn begin(&mut self, io: &Arc<Io>) {
        for begin in self.begin.drain(..) {
            // A thread that has ended is found when the queues are waited for.
            begin.send(Arc::clone(io)).unwrap_or(());
        }
    }

    /// Why a queue ended before it began.
    pub(super) fn cause(self, queue: u16) -> UblkError {
        let device_id = self.device_id;
        match self.join() {
            Err(why) => why,
            Ok(_) => UblkError::Queue { device_id, queue, reason: "it ended before it began".into() },
        }
    }

    /// Whether a message is about the end of one of these threads.
    pub(super) const fn is_of(&self, attempt: u32) -> bool {
        self.attempt == attempt
    }

    /// Whether a thread has ended.
    pub(super) fn any_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits for a message of every queue, prepared or ready. The first queue that failed instead: [`Workers::join`] tells why.
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
    pub(super) fn join(mut self) -> Result<QueueEnd, UblkError> {
        // Threads that never got the device leave.
        self.begin.clear();
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
