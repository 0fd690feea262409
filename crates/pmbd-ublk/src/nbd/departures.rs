//! The order between connections: what a client sent over one that it has closed runs before
//! what is sent afterwards over another.
//!
//! A client whose connection breaks sends its unanswered requests again, over a new connection or another one of its own, and
//! goes on with newer ones. The server may still have the first copies in its buffers. One of these must not run after its second
//! copy was acknowledged, for it would undo what was written since.
//!
//! So each connection, when it has received requests and before it runs them, asks whether another connection has been closed by
//! its client, and waits for the end of that one's thread. Closing precedes sending again, and is seen here without delay: the
//! kernel marks the server's socket when the client's is closed. A connection that is closed itself waits for none, so that two
//! never wait for each other.

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
/// Even without patience, a thread gets a moment to end.
const MIN_GRACE: Duration = Duration::from_millis(10);

/// The connections of a server, and which of them their clients have closed.
#[derive(Debug)]
pub(super) struct Departures {
    /// Has every connection's socket, and reports those that are closed.
    closed: OwnedFd,
    /// How many there are: a single one has no other to ask for.
    count: AtomicUsize,
    connections: Mutex<BTreeMap<u64, Arc<OwnedFd>>>,
    /// A connection's thread has run its last request.
    ended: Condvar,
    /// How long a closed connection may take before its replies are given up.
    grace: Duration,
}

impl Departures {
    pub(super) fn new(grace: Duration) -> io::Result<Self> {
        let closed = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            closed,
            count: AtomicUsize::new(0),
            connections: Mutex::default(),
            ended: Condvar::new(),
            grace: grace.max(MIN_GRACE),
        })
    }

    /// Adds a connection, before its first request is received.
    pub(super) fn insert(&self, id: u64, socket: &Arc<OwnedFd>) -> io::Result<()> {
        // Hang-ups and errors are reported unasked.
        epoll::add(&self.closed, socket, epoll::EventData::new_u64(id), epoll::EventFlags::RDHUP)?;
        self.lock().insert(id, Arc::clone(socket));
        self.count.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Takes a connection out that was added, after its last request has run.
    pub(super) fn remove(&self, id: u64) {
        let mut connections = self.lock();
        if let Some(socket) = connections.remove(&id) {
            self.count.fetch_sub(1, SeqCst);
            epoll::delete(&self.closed, &socket).expect("the socket was added, and is open");
        }
        drop(connections);
        self.ended.notify_all();
    }

    /// Waits until every connection that its client has closed by now has run its last request. `own` is the caller's socket.
    #[inline]
    pub(super) fn wait(&self, own: BorrowedFd<'_>) -> io::Result<()> {
        if self.count.load(SeqCst) > 1 && self.some_closed(&mut [NO_EVENT])? != 0 {
            self.wait_for_closed(own)?;
        }
        Ok(())
    }

    #[cold]
    fn wait_for_closed(&self, own: BorrowedFd<'_>) -> io::Result<()> {
        let mut connections = self.lock();
        loop {
            let mut closed = [NO_EVENT; 16];
            let closed_count = self.some_closed(&mut closed)?;
            if closed_count == 0 || is_closed(own)? {
                return Ok(());
            }
            let waited = self.ended.wait_timeout(connections, self.grace);
            let timed_out;
            (connections, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            if timed_out.timed_out() {
                // A thread may be sending to a client that has closed one direction and does not read the other.
                let ids = closed[..closed_count].iter().map(|event| { event.data }.u64());
                for socket in ids.filter_map(|id| connections.get(&id)) {
                    if let Err(error) = rustix::net::shutdown(socket, Shutdown::Write) {
                        tracing::debug!(%error, "a client was gone already");
                    }
                }
            }
        }
    }

    /// Finds some of the closed connections, and none only if there are none.
    fn some_closed(&self, events: &mut [epoll::Event]) -> io::Result<usize> {
        Ok(retry_on_intr(|| epoll::wait(&self.closed, &mut *events, Some(&AT_ONCE)))?)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OwnedFd>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the client has closed the connection, or its sending direction.
fn is_closed(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    Ok(retry_on_intr(|| rustix::event::poll(&mut polled, Some(&AT_ONCE)))? != 0)
}
