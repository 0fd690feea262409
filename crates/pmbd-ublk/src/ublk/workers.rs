//! The threads that serve the queues.

use super::device::Device;
use super::error::UblkError;
use super::options::Options;
use super::queue::{Queue, QueueConfig, QueueEnd};
use super::shutdown::Message;
use crate::engine::Engine;
use pm_core::Pmem;
use pm_ublk::{CharDevice, Control, QueueError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// One thread a queue, each with its ring and buffers.
pub(super) struct Workers {
    device_id: u32,
    /// Distinguishes the ends of these threads from those of an earlier attempt.
    attempt: u32,
    threads: Vec<JoinHandle<Result<QueueEnd, UblkError>>>,
    /// For each queue: its thread waits here for the device, and leaves if the sender is dropped.
    begin: Vec<Sender<Arc<CharDevice>>>,
    /// For each queue: a message when the thread is prepared, and one when the driver has its tags. A queue that fails before drops its
    /// sender instead.
    ready: Vec<Receiver<()>>,
    leave: Arc<OwnedFd>,
}

/// Reports to the serving thread that a queue has ended, even by a panic.
struct ReportEnd(Sender<Message>, u32);

impl Drop for ReportEnd {
    fn drop(&mut self) {
        // Without a receiver the server has ended.
        self.0.send(Message::QueueEnded(self.1)).unwrap_or(());
    }
}

impl Workers {
    /// Starts a thread for each queue of `device`, and waits until each has its ring and buffers.
    pub(super) fn prepare<P: Pmem + Send + Sync + 'static>(
        control: &mut Control,
        device: &Device,
        engine: &Arc<Engine<P>>,
        options: &Options,
        messages: &Sender<Message>,
        attempt: u32,
    ) -> Result<Self, UblkError> {
        let info = device.info();
        let device_id = info.device_id;
        // One write makes it readable for every queue for good, as it is never read.
        let leave = eventfd(0, EventfdFlags::CLOEXEC).map_err(UblkError::system("making an eventfd"))?;
        let leave = Arc::new(leave);
        let (threads, begin, ready) = (Vec::new(), Vec::new(), Vec::new());
        let mut workers = Self { device_id, attempt, threads, begin, ready, leave };
        for queue in 0..info.queues {
            let failed =
                move |why: QueueError| UblkError::Queue { device_id, queue, reason: why.to_string() };
            let cpus = device.cpus(control, queue, &options.affinity)?;
            let config = QueueConfig {
                queue,
                depth: info.depth,
                max_io_bytes: info.max_io_bytes,
                spin: options.spin,
                record: device.record(),
                leave: Arc::clone(&workers.leave),
            };
            let engine = Arc::clone(engine);
            let (is_ready, ready) = channel();
            let (begin, device) = channel::<Arc<CharDevice>>();
            let report_end = ReportEnd(messages.clone(), attempt);
            let serve = move || {
                let _report_end = report_end;
                if let Some(cpus) = cpus {
                    pin(&cpus)?;
                }
                let queue = Queue::prepare(config).map_err(failed)?;
                is_ready.send(()).unwrap_or(());
                let Ok(device) = device.recv() else { return Ok(QueueEnd::Left) };
                queue.serve(&device, &engine, &is_ready).map_err(failed)
            };
            let thread = std::thread::Builder::new().name(format!("ublk{device_id}-q{queue}")).spawn(serve);
            // On an error the threads leave, as their senders are dropped with `workers`.
            workers.threads.push(thread.map_err(UblkError::system("starting a queue's thread"))?);
            workers.begin.push(begin);
            workers.ready.push(ready);
        }
        match workers.first_not_ready() {
            Some(queue) => Err(workers.cause(queue)),
            None => Ok(workers),
        }
    }

    /// Passes the device to the threads. Each fetches its queue's tags.
    pub(super) fn begin(&mut self, device: &Arc<CharDevice>) {
        for begin in self.begin.drain(..) {
            // `first_not_ready` finds a thread that has ended.
            begin.send(Arc::clone(device)).unwrap_or(());
        }
    }

    /// Why a queue ended before it began.
    fn cause(self, queue: u16) -> UblkError {
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

    /// Waits until every queue is prepared, or ready. Returns the first queue that failed instead; [`Workers::join`] has its error.
    pub(super) fn first_not_ready(&self) -> Option<u16> {
        (0..).zip(&self.ready).find(|(_, ready)| ready.recv().is_err()).map(|(queue, _)| queue)
    }

    /// Makes the threads leave their queues, whatever the state of the device.
    pub(super) fn dismiss(&self) -> Result<(), UblkError> {
        // Eight bytes that are not zero in either byte order.
        rustix::io::write(&*self.leave, &[1; 8]).map_err(UblkError::system("dismissing the queues"))?;
        Ok(())
    }

    /// Waits until the threads have ended. Returns the first failure; else whether the device was stopped.
    pub(super) fn join(mut self) -> Result<QueueEnd, UblkError> {
        // Threads that have no device yet leave.
        self.begin.clear();
        let mut outcome = Ok(QueueEnd::Left);
        for (queue, thread) in (0..).zip(self.threads) {
            let device_id = self.device_id;
            let panicked =
                |_| Err(UblkError::Queue { device_id, queue, reason: "its thread panicked".into() });
            outcome = match (outcome, thread.join().unwrap_or_else(panicked)) {
                (Ok(QueueEnd::Left), ended) => ended,
                (Ok(QueueEnd::Stopped), Err(error)) => Err(error),
                (first, _) => first,
            };
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
