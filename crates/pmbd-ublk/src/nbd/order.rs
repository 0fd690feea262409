//! The order between connections: a request that a client sent over a connection that it has closed runs before those that it sends
//! afterwards over another, or not at all.
//!
//! A client whose connection breaks sends its unanswered requests again, over a new connection or another one of its own, and continues with
//! newer ones. The server may still have the first copies in its buffers. Such a copy must not run after its second copy was acknowledged,
//! as it would overwrite newer data.
//!
//! # The invariant
//!
//! Closed connections form a queue, in the order in which their clients closed them; closed for sending is closed. **When a connection runs
//! received requests, every connection before it in the queue has run its last request. A connection that is not closed comes after all
//! that were closed when it received them.**
//!
//! - It suffices: closing precedes sending again, and the kernel marks the server's socket before `close` returns. So the connection that
//!   has the first copies is in the queue when the second ones are received, and before the connection that received those if that one is
//!   closed by then, too.
//! - It cannot deadlock: a connection waits only for those before it in the queue.
//! - The order is the kernel's: epoll reports sockets in the order in which they became ready, so a late query does not change it. Only
//!   closing makes a socket ready here.
//! - A connection is ordered from the moment it is accepted, before its handshake, and so before its first request.
//! - When the server ends, it closes all sockets for receiving, which puts those into the queue that were not in it. Whether a client closes
//!   its side afterwards cannot be seen, and does not matter: a connection receives nothing from then on, so every connection that could
//!   matter to it is before it in the queue.
//!
//! # Clients that do not read
//!
//! A connection whose client has closed only its sending direction is answered. While its thread waits for the client, in the handshake or
//! for the client to read replies, the connections after it in the queue wait for that client, too. So this waiting time is counted, from
//! the moment at which the connection is seen closed, and its socket is closed when the time exceeds the grace. The time that its requests
//! take is not counted: they complete by themselves, and a client that reads gets its replies.
//!
//! # TCP
//!
//! The end of a TCP connection arrives after its data. Until these are received, up to the contents of the client's send buffer, the server
//! cannot know that the connection is closed, and other connections do not wait for it. So data that a TCP connection receives together with
//! its end are dropped if another connection has been admitted in its time: the client may have closed it before that. No reply is sent, so
//! nothing acknowledged is lost. Requests received before the end run, however late.
//!
//! The system continues to receive for a TCP socket that the server has closed for receiving. These data are dropped, too.

use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::retry_on_intr;
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
/// The least time that a client gets to read.
const MIN_GRACE: Duration = Duration::from_millis(10);

/// The connections of a server, and the queue of closed ones.
#[derive(Debug)]
pub(super) struct ConnectionOrder {
    /// An epoll of every connection's socket: reports the closed ones, in the order of closing. Queried with the lock held, for all at
    /// once: each report changes the order of the next one.
    closed: OwnedFd,
    /// An epoll of `closed`: whether it would report a socket, without changing its order.
    any_closed: OwnedFd,
    /// The number of connections: a single one waits for no other.
    count: AtomicUsize,
    /// The number of TCP connections.
    tcp_count: AtomicUsize,
    /// The number of admissions while there were TCP connections.
    admissions: AtomicU64,
    /// The server is closing, or has closed, all sockets for receiving.
    is_ending: AtomicBool,
    state: Mutex<State>,
    /// A connection has run its last request, or waits for its client.
    changed: Condvar,
    /// How long a closed connection may wait for its client to read before its replies are dropped.
    grace: Duration,
}

#[derive(Debug, Default)]
struct State {
    connections: BTreeMap<u64, Entry>,
    /// The number of the next connection.
    next_id: u64,
    /// The next position in the queue.
    next_position: u64,
    /// When the replies of closed connections are dropped, once the server ends.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    socket: Arc<OwnedFd>,
    /// Its position in the queue, if it is closed.
    position: Option<u64>,
    /// Since when it waits for its client, if it does: to read replies, or in the handshake. Not while requests run, as their client may be reading.
    stalled_since: Option<Instant>,
    /// The earlier such waits in total, since it was closed.
    stalled: Duration,
    /// Its replies were dropped.
    is_cut: bool,
}

impl Entry {
    /// When its replies are dropped, unless its client reads them before. `None` while it does not wait for its client.
    fn deadline(&self, grace: Duration) -> Option<Instant> {
        self.stalled_since?.checked_add(grace.saturating_sub(self.stalled)).filter(|_| !self.is_cut)
    }
}

impl State {
    /// The connections before that position in the queue.
    fn before(&mut self, position: u64) -> impl Iterator<Item = &mut Entry> {
        self.connections.values_mut().filter(move |entry| entry.position.is_some_and(|its| its < position))
    }

    /// Drops the replies of connections before that position whose deadline has passed. Returns the next deadline.
    fn cut(&mut self, position: u64, grace: Duration) -> Option<Instant> {
        let (now, end) = (Instant::now(), self.deadline);
        let mut next: Option<Instant> = None;
        for entry in self.before(position).filter(|entry| entry.stalled_since.is_some() && !entry.is_cut) {
            // A client that reads can make its connection wait for a moment, too, if it has much to read.
            let end = end.zip(entry.stalled_since).map(|(end, since)| end.max(since + MIN_GRACE));
            match [entry.deadline(grace), end].into_iter().flatten().min() {
                Some(end) if end <= now => {
                    entry.is_cut = true;
                    shut_down(&entry.socket, Shutdown::Write);
                }
                end => next = [next, end].into_iter().flatten().min(),
            }
        }
        next
    }
}

impl ConnectionOrder {
    pub(super) fn new(grace: Duration) -> io::Result<Self> {
        let closed = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let any_closed = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&any_closed, &closed, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self {
            closed,
            any_closed,
            count: AtomicUsize::new(0),
            tcp_count: AtomicUsize::new(0),
            admissions: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            grace: grace.max(MIN_GRACE),
        })
    }

    /// Adds a connection, before it can have a request. It stays until the result is dropped.
    pub(super) fn join(self: &Arc<Self>, socket: OwnedFd, is_tcp: bool) -> io::Result<Member> {
        let socket = Arc::new(socket);
        let mut state = self.lock();
        let id = state.next_id;
        // epoll reports hang-ups and errors by default.
        epoll::add(&self.closed, &socket, epoll::EventData::new_u64(id), epoll::EventFlags::RDHUP)?;
        state.next_id += 1;
        let entry = Entry {
            socket: Arc::clone(&socket),
            position: None,
            stalled_since: Some(Instant::now()),
            stalled: Duration::ZERO,
            is_cut: false,
        };
        state.connections.insert(id, entry);
        self.count.fetch_add(1, SeqCst);
        self.tcp_count.fetch_add(usize::from(is_tcp), SeqCst);
        drop(state);
        let admissions = self.admissions.load(SeqCst);
        Ok(Member { order: Arc::clone(self), id, socket, is_tcp, admissions })
    }

    /// Closes all connections for receiving.
    pub(super) fn end(&self) -> io::Result<()> {
        let mut state = self.lock();
        // Before any is closed: a TCP connection that receives data after that finds it set.
        self.is_ending.store(true, SeqCst);
        // Half of the grace: the other half is left for the replies of the other connections, before the server cuts all.
        state.deadline = Instant::now().checked_add(self.grace / 2);
        state.connections.values().for_each(|entry| shut_down(&entry.socket, Shutdown::Read));
        let enqueued = self.enqueue_closed(&mut state);
        drop(state);
        self.changed.notify_all();
        enqueued
    }

    /// Appends to the queue the connections that were closed and are not in it.
    fn enqueue_closed(&self, state: &mut State) -> io::Result<()> {
        let mut closed = vec![NO_EVENT; state.connections.len().max(1)];
        let count = retry_on_intr(|| epoll::wait(&self.closed, &mut closed[..], Some(&AT_ONCE)))?;
        for event in &closed[..count] {
            if let Some(entry) = state.connections.get_mut(&{ event.data }.u64())
                && entry.position.is_none()
            {
                entry.position = Some(state.next_position);
                // No connection waited for it before it was closed.
                entry.stalled_since = entry.stalled_since.map(|_| Instant::now());
                entry.stalled = Duration::ZERO;
                state.next_position += 1;
            }
        }
        Ok(())
    }

    /// Whether any connection is closed that has not ended.
    #[inline]
    fn is_any_closed(&self) -> io::Result<bool> {
        let mut event = [NO_EVENT];
        Ok(retry_on_intr(|| epoll::wait(&self.any_closed, &mut event[..], Some(&AT_ONCE)))? != 0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in the order. Dropped after its last request has run.
#[derive(Debug)]
pub(super) struct Member {
    order: Arc<ConnectionOrder>,
    id: u64,
    socket: Arc<OwnedFd>,
    is_tcp: bool,
    /// The value of the counter of admissions if no other connection was admitted since this one joined.
    admissions: u64,
}

impl Member {
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Waits until the received requests may run. False if they must not, and the connection has ended.
    #[inline]
    pub(super) fn admit(&mut self) -> io::Result<bool> {
        let order = &*self.order;
        if self.is_tcp && order.is_ending.load(SeqCst) {
            tracing::debug!("dropped requests that arrived over TCP while the server ends");
            return Ok(false);
        }
        let mut is_overtaken = false;
        // Counted before the other connections are queried: of two that are admitted at a time, a closed one sees the other's
        // admission, or is seen closed by the other.
        if order.tcp_count.load(SeqCst) > 0 {
            let admissions = order.admissions.fetch_add(1, SeqCst);
            is_overtaken = self.is_tcp && admissions != self.admissions;
            self.admissions += 1;
        }
        if (order.count.load(SeqCst) > 1 || is_overtaken) && order.is_any_closed()? {
            return self.admit_in_order(is_overtaken);
        }
        Ok(true)
    }

    #[cold]
    fn admit_in_order(&self, is_overtaken: bool) -> io::Result<bool> {
        let order = &*self.order;
        let mut state = order.lock();
        order.enqueue_closed(&mut state)?;
        let own = state.connections.get(&self.id).and_then(|entry| entry.position);
        if is_overtaken && own.is_some() {
            tracing::debug!("dropped the last requests of a TCP connection, which may have been sent again");
            return Ok(false);
        }
        let position = own.unwrap_or(state.next_position);
        while state.before(position).next().is_some() {
            // Another thread may be sending to a client that has closed its sending direction and does not read.
            state = match state.cut(position, order.grace) {
                Some(next) => {
                    let left = next.saturating_duration_since(Instant::now());
                    order.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => order.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        Ok(true)
    }

    /// The connection waits for its client to read, until the result is dropped.
    #[cold]
    pub(super) fn stall(&self) -> Stall<'_> {
        self.note_stalled(true);
        Stall(self)
    }

    /// The handshake, in which the connection waits for its client, is over.
    pub(super) fn begin_transmission(&self) {
        self.note_stalled(false);
    }

    fn note_stalled(&self, is_stalled: bool) {
        let mut state = self.order.lock();
        if let Some(entry) = state.connections.get_mut(&self.id) {
            let now = Instant::now();
            entry.stalled += entry.stalled_since.map_or(Duration::ZERO, |since| now.duration_since(since));
            entry.stalled_since = is_stalled.then_some(now);
        }
        drop(state);
        if is_stalled {
            // The connections that wait for this one recompute their deadline.
            self.order.changed.notify_all();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let order = &*self.order;
        let mut state = order.lock();
        state.connections.remove(&self.id);
        order.count.fetch_sub(1, SeqCst);
        order.tcp_count.fetch_sub(usize::from(self.is_tcp), SeqCst);
        epoll::delete(&order.closed, &self.socket).expect("the socket was added, and is open");
        drop(state);
        order.changed.notify_all();
    }
}

/// A connection's wait for its client to read.
pub(super) struct Stall<'m>(&'m Member);

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        self.0.note_stalled(false);
    }
}

/// Closes a socket in one direction.
fn shut_down(socket: &OwnedFd, how: Shutdown) {
    if let Err(error) = rustix::net::shutdown(socket, how) {
        tracing::debug!(%error, "a client had disconnected already");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A client may have closed its side just before the server did, and data received since could be its own.
    #[test]
    fn connections_closed_by_server_run_after_those_closed_by_clients() {
        let order = Arc::new(ConnectionOrder::new(Duration::MAX).unwrap());
        let joined = || {
            let (client, server) = UnixStream::pair().unwrap();
            (client, order.join(server.into(), false).unwrap())
        };
        let ((_first, mut first), (_second, mut second), (closed, mut earlier)) =
            (joined(), joined(), joined());
        closed.shutdown(std::net::Shutdown::Write).unwrap();
        order.end().unwrap();
        assert!(earlier.admit().unwrap());
        std::thread::scope(|threads| {
            let (admitted, order) = channel();
            let its = admitted.clone();
            threads.spawn(move || its.send((2, second.admit().unwrap())).unwrap());
            threads.spawn(move || {
                let is_admitted = first.admit().unwrap();
                // Before it is dropped, which releases the other.
                admitted.send((1, is_admitted)).unwrap();
            });
            assert_eq!(order.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
            drop(earlier);
            assert_eq!(order.recv_timeout(PATIENCE), Ok((1, true)));
            assert_eq!(order.recv_timeout(PATIENCE), Ok((2, true)));
        });
    }
}
