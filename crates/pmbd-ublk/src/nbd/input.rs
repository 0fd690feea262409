//! The receiving half of a connection: one buffer, many requests a system call, and a moment of patience.

use super::protocol::{REQUEST_BYTES, Request};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Size of the buffer: 16 requests of 4 KiB four times over, and little enough to stay in the second-level cache.
const BUFFER_BYTES: usize = 256 << 10;

/// What the buffer starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Not yet a whole request: [`Input::receive`] first.
    Nothing,
    /// A request whose payload, if it has one, is whole: [`Input::take`] it.
    Whole(Request),
    /// A request whose payload is longer than the buffer: [`Input::take_some`] of it, again and again.
    Long(Request),
    /// Something that is no request. Nothing behind it can be understood.
    Garbage,
}

/// Bytes that have come and wait to be looked at.
#[derive(Debug)]
pub(super) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    patience: Patience,
}

impl Input {
    pub(super) fn new(patience: Patience) -> Self {
        Self { buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0, patience }
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

    /// As much of a long payload as is there, in whole granules but for its end. `left` is what is missing of it.
    pub(super) fn take_some(&mut self, left: usize, granule: usize) -> &[u8] {
        let there = self.end - self.start;
        let some = if there >= left { left } else { there - there % granule };
        self.take(some)
    }

    /// Waits until more bytes come, and gets as many as there are. False when the client has closed its side.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let free = &mut self.buffer[self.end..];
        debug_assert!(!free.is_empty(), "a request that fits the buffer is taken before more is received");
        let received = self.patience.receive(socket.as_fd(), free)?;
        self.end += received;
        Ok(received != 0)
    }
}

/// How many threads poll now, in this process.
static POLLING: AtomicUsize = AtomicUsize::new(0);
/// The longest pause between two tries of a connection whose polling does not pay, in receives.
const MAX_PAUSE: u32 = 64;

/// Decides how to wait for a client: polling for a moment saves the sleep and the wakeup, which cost several times
/// what it takes to serve a request; but only if the client is quick, and a core has nothing better to do.
#[derive(Debug)]
pub(super) struct Patience {
    window: Duration,
    /// Threads that may poll at a time: one half of the cores, so that the clients on this machine have the others.
    max_polling: usize,
    /// Receives to go without polling.
    skip: u32,
    /// What `skip` becomes at the next poll in vain; doubles each time.
    pause: u32,
}

impl Patience {
    pub(super) fn new(window: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { window, max_polling: cores / 2, skip: 0, pause: 1 }
    }

    fn receive(&mut self, socket: rustix::fd::BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
        if self.skip > 0 {
            self.skip -= 1;
        } else if !self.window.is_zero() && POLLING.load(Relaxed) < self.max_polling {
            POLLING.fetch_add(1, Relaxed);
            let polled = poll(socket, into, self.window);
            POLLING.fetch_sub(1, Relaxed);
            if let Some(result) = polled.transpose() {
                self.pause = 1;
                return result;
            }
            self.skip = self.pause;
            self.pause = (2 * self.pause).min(MAX_PAUSE);
        }
        loop {
            match rustix::net::recv(socket, &mut *into, RecvFlags::empty()) {
                Ok((received, _)) => return Ok(received),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Tries to receive for as long as `window`. Any other thread that wants this core gets it in between.
fn poll(socket: rustix::fd::BorrowedFd<'_>, into: &mut [u8], window: Duration) -> io::Result<Option<usize>> {
    let start = Instant::now();
    loop {
        match rustix::net::recv(socket, &mut *into, RecvFlags::DONTWAIT) {
            Ok((received, _)) => return Ok(Some(received)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if start.elapsed() >= window {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}
