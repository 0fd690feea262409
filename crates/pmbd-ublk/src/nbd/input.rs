//! The receiving half of a connection: one buffer, many requests a system call, and adaptive polling.

use super::protocol::{REQUEST_BYTES, Request};
use crate::polling::Polling;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::RecvFlags;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Size of the buffer: 16 requests of 4 KiB four times over, and little enough to stay in the second-level cache.
const BUFFER_BYTES: usize = 256 << 10;

/// The contents of the buffer's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// No whole request yet: [`Input::receive`] first.
    Nothing,
    /// A request with its whole payload: [`Input::take`] the payload.
    Whole(Request),
    /// A request whose payload is longer than the buffer: [`Input::take_some`] of it, repeatedly.
    Long(Request),
    /// Not a request, so the bytes that follow cannot be decoded either.
    Garbage,
}

/// Received bytes that wait to be decoded.
#[derive(Debug)]
pub(super) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    polling: Polling,
    /// Threads that may poll at a time: one half of the cores, so that local clients have the others.
    max_polling: usize,
}

impl Input {
    /// An empty buffer, whose connection polls for at most `spin` at a time.
    pub(super) fn new(spin: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (buffer, polling) = (vec![0; BUFFER_BYTES].into(), Polling::new(spin));
        Self { buffer, start: 0, end: 0, polling, max_polling: cores / 2 }
    }

    /// The next request, taken off the buffer if it can be run.
    #[inline]
    pub(super) fn next(&mut self) -> Next {
        let waiting = &self.buffer[self.start..self.end];
        let Some(head) = waiting.first_chunk::<REQUEST_BYTES>() else { return Next::Nothing };
        let Some(request) = Request::decode(head) else { return Next::Garbage };
        let whole_bytes = REQUEST_BYTES + request.payload_bytes() as usize;
        if whole_bytes > self.buffer.len() {
            self.start += REQUEST_BYTES;
            Next::Long(request)
        } else if whole_bytes > waiting.len() {
            Next::Nothing
        } else {
            self.start += REQUEST_BYTES;
            Next::Whole(request)
        }
    }

    /// The payload of a whole request.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> &[u8] {
        let at = self.start;
        self.start += len;
        &self.buffer[at..self.start]
    }

    /// The received part of a long payload, in whole granules except at its end. `left` is the length of its missing part.
    pub(super) fn take_some(&mut self, left: usize, granule: usize) -> &[u8] {
        let there = self.end - self.start;
        let some = if there >= left { left } else { there - there % granule };
        self.take(some)
    }

    /// Waits for more bytes. False when the client has closed its side.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let free = &mut self.buffer[self.end..];
        debug_assert!(!free.is_empty(), "a request that fits the buffer is taken before more is received");
        let received = receive(socket.as_fd(), free, &mut self.polling, self.max_polling)?;
        self.end += received;
        Ok(received != 0)
    }
}

/// The number of threads that poll, in this process.
static POLLING: AtomicUsize = AtomicUsize::new(0);

/// Waits for more bytes, and gets as many as there are: by polling for a while, if that pays and a core is free, else asleep.
fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    polling: &mut Polling,
    max_polling: usize,
) -> io::Result<usize> {
    let (budget, idle_since) = (polling.budget(), Instant::now());
    if !budget.is_zero() && POLLING.load(Relaxed) < max_polling {
        POLLING.fetch_add(1, Relaxed);
        let polled = poll(socket, into, idle_since, budget);
        POLLING.fetch_sub(1, Relaxed);
        if let Some(result) = polled.transpose() {
            polling.learn(idle_since.elapsed());
            return result;
        }
    }
    let (received, _) = retry_on_intr(|| rustix::net::recv(socket, &mut *into, RecvFlags::empty()))?;
    polling.learn(idle_since.elapsed());
    Ok(received)
}

/// Tries to receive for as long as `budget`, and yields to other threads in between.
fn poll(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    started: Instant,
    budget: Duration,
) -> io::Result<Option<usize>> {
    loop {
        match rustix::net::recv(socket, &mut *into, RecvFlags::DONTWAIT) {
            Ok((received, _)) => return Ok(Some(received)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if started.elapsed() >= budget {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}
