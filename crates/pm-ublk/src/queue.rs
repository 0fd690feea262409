//! A queue and its ring: fetches requests, and commits the answers.
//!
//! Each tag is in one of two hands. A *fetched* tag is the driver's, which copies the data of the next write into the tag's buffer. The completion of the
//! fetch hands the tag to the server, with the description of a request. The server's answer, *commit and fetch*, returns it to the driver, which copies the
//! buffer to the request's pages if it was a read. So the buffer of a tag is borrowed only between a completion and the answer.
#![expect(unsafe_code, reason = "the kernel is given commands with the addresses of buffers")]

use crate::buffers::Buffers;
use crate::command::{IoCommand, io_payload};
use crate::descriptors::Descriptors;
use crate::device::{CharDevice, DeviceRecord};
use crate::error::QueueError;
use crate::sys;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The name of the completion that says that the descriptor to watch is readable. Those of tags are the tags.
const WATCH: u64 = 1 << 32;

/// The position of the character device among the ring's registered files.
const DEVICE: types::Fixed = types::Fixed(0);

/// The ring and the buffers of a queue, made before the device has a server.
pub struct PreparedQueue {
    ring: IoUring,
    buffers: Buffers,
}

/// A queue that the thread which prepared it serves.
///
/// Dropping it closes the ring, and so makes the driver cancel the fetched tags. Until this thread has ended the driver may nevertheless copy the data of
/// a request into their buffers. So these are released only if the driver has aborted all tags; else they are leaked.
pub struct Queue {
    ring: IoUring,
    buffers: Buffers,
    descriptors: Descriptors,
    queue: u16,
    features: u64,
    /// Tags that are the driver's, or become so with the next submission.
    fetched: usize,
    /// Whether the driver has aborted a tag. Then it accepts no more.
    aborting: bool,
}

/// What a call of [`Queue::turn`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Served some requests, or none.
    Served {
        /// Requests.
        count: u32,
        /// The watched descriptor has become readable, which is reported once.
        watched: bool,
    },
    /// The driver has aborted all tags, as it does when the device is stopped.
    Stopped,
}

impl PreparedQueue {
    /// Makes the ring and a buffer for each tag, on the thread that will serve the queue. The buffers become memory when they are used.
    ///
    /// # Errors
    /// If the kernel has too little memory, or no io_uring.
    pub fn new(depth: u16, max_io_bytes: u32) -> Result<Self, QueueError> {
        // A submission for each tag, and one for the descriptor to watch.
        let entries = u32::from(depth) + 1;
        // A request is announced by task work that runs on this thread. With these flags it runs when the thread enters the kernel, instead of
        // interrupting it, and the ring shows that such work is pending, which `is_ready` looks at.
        let ring = IoUring::builder()
            .setup_cqsize(entries * 2)
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(entries)
            .map_err(QueueError::system("setting up an io_uring"))?;
        Ok(Self { ring, buffers: Buffers::map(depth, max_io_bytes)? })
    }

    /// Prepares the offer of all tags of queue `queue` of `device`, of which `record` is the driver's; the first [`Queue::turn`] submits them in one system
    /// call. From then on the queue reports once if `watched` becomes readable.
    ///
    /// # Errors
    /// [`QueueError::Unfit`] for a device with another depth or longer requests, or the record of another device; else if the descriptors cannot be
    /// mapped: `EINVAL` if the device has no such queue.
    pub fn fetch(
        self,
        device: &CharDevice,
        record: &DeviceRecord,
        queue: u16,
        watched: Option<BorrowedFd<'_>>,
    ) -> Result<Queue, QueueError> {
        // The driver does not know how long the buffers are.
        let fits = record.max_io_buf_bytes as usize <= self.buffers.len_bytes();
        if device.device_id() != record.dev_id || self.buffers.depth() != record.queue_depth || !fits {
            return Err(QueueError::Unfit {
                device_id: record.dev_id,
                depth: record.queue_depth,
                max_io_bytes: record.max_io_buf_bytes,
            });
        }
        let descriptors = Descriptors::map(device.as_fd(), queue, self.buffers.depth())?;
        self.offer(device, descriptors, queue, record.flags, watched)
    }

    fn offer(
        self,
        device: &CharDevice,
        descriptors: Descriptors,
        queue: u16,
        features: u64,
        watched: Option<BorrowedFd<'_>>,
    ) -> Result<Queue, QueueError> {
        let Self { ring, buffers } = self;
        let registered = ring.submitter().register_files(&[device.raw()]);
        registered.map_err(QueueError::system("registering the ublk character device"))?;
        let mut queue = Queue { ring, buffers, descriptors, queue, features, fetched: 0, aborting: false };
        for tag in 0..queue.buffers.depth() {
            // The result of a fetch has no meaning.
            let entry = queue.command(IoCommand::Fetch, tag, -1);
            push(&mut queue.ring.submission(), &entry)?;
            queue.fetched += 1;
        }
        if let Some(watched) = watched {
            let readable = u32::from(PollFlags::IN.bits());
            let entry = opcode::PollAdd::new(types::Fd(watched.as_raw_fd()), readable).build();
            push(&mut queue.ring.submission(), &entry.user_data(WATCH))?;
        }
        Ok(queue)
    }
}

impl Queue {
    /// Submits the answers of the last turn, waits until there are `wait` completions, and serves those that are there. `serve` gets the description of a
    /// request and the buffer of its tag, and returns the number of bytes that it has moved, or the error of the request. A signal ends the wait.
    ///
    /// # Errors
    /// If the driver refuses a tag or an answer, or the ring fails. The queue can then not be served any longer.
    pub fn turn(
        &mut self,
        wait: usize,
        mut serve: impl FnMut(&sys::ublksrv_io_desc, &mut [u8]) -> Result<u32, Errno>,
    ) -> Result<Turn, QueueError> {
        if self.is_stopped() {
            return Ok(Turn::Stopped);
        }
        let (mut count, mut watched) = (0, false);
        match self.ring.submit_and_wait(wait) {
            Ok(_) => {}
            Err(e) if is_transient(&e) => return Ok(Turn::Served { count, watched }),
            Err(e) => return Err(QueueError::system("waiting for requests")(e)),
        }
        let (_, mut submissions, completions) = self.ring.split();
        for completion in completions {
            let (user_data, result) = (completion.user_data(), completion.result());
            let completion = Completion::of(user_data, result, self.buffers.depth())?;
            if completion != Completion::Watched {
                let fetched = self.fetched.checked_sub(1);
                self.fetched = fetched.ok_or(QueueError::Unexpected { user_data, result })?;
            }
            match completion {
                Completion::Watched => watched = true,
                Completion::Aborted => self.aborting = true,
                Completion::Request(tag) => {
                    count += 1;
                    let buffer = self.buffers.of(tag);
                    let result = result_of(serve(&self.descriptors.read(tag), buffer));
                    // The driver, once it has aborted tags, cancels no tag that is fetched later: it would never complete.
                    if !self.aborting {
                        let number = IoCommand::CommitAndFetch.number(self.features);
                        let address = buffer.as_mut_ptr() as u64;
                        push(&mut submissions, &entry(number, self.queue, tag, result, address))?;
                        self.fetched += 1;
                    }
                }
            }
        }
        drop(submissions);
        Ok(if self.is_stopped() { Turn::Stopped } else { Turn::Served { count, watched } })
    }

    /// Submits the answers of the last turn. The next turn then need only wait.
    ///
    /// # Errors
    /// If the ring fails.
    pub fn submit(&mut self) -> Result<(), QueueError> {
        match self.ring.submit() {
            Err(e) if !is_transient(&e) => Err(QueueError::system("submitting answers")(e)),
            // What was not submitted is submitted by the next turn.
            _ => Ok(()),
        }
    }

    /// Whether the next turn has something to serve, without a system call.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    /// Whether the driver has aborted all tags.
    const fn is_stopped(&self) -> bool {
        self.aborting && self.fetched == 0
    }

    fn command(&mut self, command: IoCommand, tag: u16, result: i32) -> squeue::Entry {
        let address = self.buffers.of(tag).as_mut_ptr() as u64;
        entry(command.number(self.features), self.queue, tag, result, address)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.is_stopped() {
            self.buffers.leak();
        }
    }
}

impl fmt::Debug for PreparedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedQueue").field("depth", &self.buffers.depth()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Queue");
        shown.field("queue", &self.queue).field("fetched", &self.fetched).finish_non_exhaustive()
    }
}

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completion {
    /// The tag has a request.
    Request(u16),
    /// The driver will not use the tag any more.
    Aborted,
    /// The watched descriptor is readable, or cannot be watched.
    Watched,
}

impl Completion {
    #[inline]
    fn of(user_data: u64, result: i32, depth: u16) -> Result<Self, QueueError> {
        if user_data == WATCH {
            return Ok(Self::Watched);
        }
        let tag = u16::try_from(user_data).ok().filter(|tag| *tag < depth);
        let Some(tag) = tag else { return Err(QueueError::Unexpected { user_data, result }) };
        match result {
            0 => Ok(Self::Request(tag)),
            sys::UBLK_IO_RES_ABORT => Ok(Self::Aborted),
            -4095..0 => Err(QueueError::Refused { tag, errno: Errno::from_raw_os_error(-result) }),
            _ => Err(QueueError::Unexpected { user_data, result }),
        }
    }
}

/// The result of a request as the driver takes it. Buffers have at most 32 MiB, so the number of bytes never saturates.
fn result_of(answer: Result<u32, Errno>) -> i32 {
    match answer {
        Ok(moved) => i32::try_from(moved).unwrap_or(i32::MAX),
        Err(errno) => -errno.raw_os_error(),
    }
}

/// Whether a submission that failed like this succeeds later: a signal came, or the kernel had no memory for a submission.
fn is_transient(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::AGAIN))
}

/// The command for a tag whose buffer is at `address`.
fn entry(number: u32, queue: u16, tag: u16, result: i32, address: u64) -> squeue::Entry {
    let payload = io_payload(sys::ublksrv_io_cmd { q_id: queue, tag, result, addr: address });
    opcode::UringCmd16::new(DEVICE, number).cmd(payload).build().user_data(tag.into())
}

/// Adds an entry to a ring that has room for all tags and the descriptor to watch.
fn push(submissions: &mut squeue::SubmissionQueue<'_>, entry: &squeue::Entry) -> Result<(), QueueError> {
    // SAFETY: the device is registered with the ring. The only address in an entry is that of its tag's buffer, which is neither borrowed until the command
    // has completed, nor released before: see `Queue`.
    unsafe { submissions.push(entry) }.map_err(|_| QueueError::system("filling an io_uring")(Errno::NOBUFS))
}

#[cfg(test)]
mod tests;
