//! The order between connections: what a client sent over one that it has closed runs before what it sends afterwards over
//! another, or not at all.
//!
//! A client whose connection breaks sends its unanswered requests again, over a new connection or another one of its own, and
//! goes on with newer ones. The server may still have the first copies in its buffers. One of these must not run after its second
//! copy was acknowledged, for it would undo what was written since.
//!
//! # The invariant
//!
//! Closed connections form a queue, in the order in which their clients closed them; closed for sending is closed. **When a
//! connection runs what it has received, every connection before it in the queue has run its last request. One that is not
//! closed stands behind all that were closed when it had received.**
//!
//! - It is enough: closing precedes sending again, and the kernel marks the server's socket before `close` returns. So the
//!   connection that has the first copies is in the queue when the second ones are received, and before the connection that
//!   received those if that one is closed by then, too.
//! - It cannot deadlock: a connection waits for those before it in the queue only.
//! - The order is the kernel's: epoll reports sockets in the order in which they became ready, so looking late does not change
//!   it. Nothing but closing makes a socket ready here.
//! - A connection has its place from the moment it is accepted, before its handshake: none can have a request before.
//! - When the server ends, it closes all sockets for receiving itself, which puts those into the queue that were not in it. Whether a
//!   client closes its side afterwards cannot be seen, and need not be: a connection receives nothing from then on, so every
//!   connection that could matter to it is before it in the queue.
//!
//! # Clients that do not read
//!
//! A connection whose client has closed only its sending direction is answered. While its thread waits for the client, in the
//! handshake or for the client to read replies, the connections behind it in the queue wait for that client, too. So the time that it
//! waits so is counted, from the moment at which it is seen closed, and its socket is closed once that is more than the grace. The time
//! that its requests take is not counted: they end by themselves, and a client that reads gets its replies.
//!
//! # TCP
//!
//! The end of a TCP connection comes behind its data. Until these are received, up to what the client's send buffer holds, the
//! server cannot know that the connection is closed, and other connections do not wait for it. So what a TCP connection receives
//! together with its end is dropped if another connection has been admitted in its time: the client may have closed it before
//! that. No reply is sent, so nothing acknowledged is lost. What it receives before its end runs, however late.
//!
//! The system goes on receiving for a TCP socket that the server has closed for receiving. What comes so is dropped, too.

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
/// Even without patience, a client gets a moment to read.
const MIN_GRACE: Duration = Duration::from_millis(10);

/// The connections of a server, and the queue of those that their clients have closed.
#[derive(Debug)]
pub(super) struct Departures {
    /// Has every connection's socket, and reports those that are closed, in the order in which they were. Asked with the
    /// lock held, for all at once: each report changes the order of the next one.
    closed: OwnedFd,
    /// Has `closed`, and tells whether it would report anything, without changing its order.
    any_closed: OwnedFd,
    /// How many there are: a single one has no other to ask for.
    count: AtomicUsize,
    /// How many of them are TCP connections.
    tcp_count: AtomicUsize,
    /// Counts admissions, while there are TCP connections.
    admissions: AtomicU64,
    /// The server closes, or has closed, all sockets for receiving.
    is_ending: AtomicBool,
    state: Mutex<State>,
    /// A connection has run its last request, or waits for its client.
    changed: Condvar,
    /// How long a closed connection may wait for its client to read before its replies are given up.
    grace: Duration,
}

#[derive(Debug, Default)]
struct State {
    connections: BTreeMap<u64, Entry>,
    /// The number of the next connection.
    next_id: u64,
    /// The number of the next place in the queue.
    next_place: u64,
    /// When the replies of closed connections are given up, once the server ends.
    end_of_patience: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    socket: Arc<OwnedFd>,
    /// Its place in the queue, if it is closed.
    place: Option<u64>,
    /// Since when it waits for its client, if it does: to read replies, or in the handshake. Not while requests run, however long
    /// the medium takes for them: their client may well be reading.
    stalled_since: Option<Instant>,
    /// How long it has done so before, since it was closed.
    stalled: Duration,
    /// Its replies were given up.
    is_cut: bool,
}

impl Entry {
    /// When its replies are given up, unless its client has read until then. None while it does not wait for that.
    fn end_of_patience(&self, grace: Duration) -> Option<Instant> {
        self.stalled_since?.checked_add(grace.saturating_sub(self.stalled)).filter(|_| !self.is_cut)
    }
}

impl State {
    /// The connections that stand before that place in the queue.
    fn before(&mut self, place: u64) -> impl Iterator<Item = &mut Entry> {
        self.connections.values_mut().filter(move |entry| entry.place.is_some_and(|its| its < place))
    }

    /// Gives up the replies of those before that place whose time is over. Returns when the next one's is.
    fn cut(&mut self, place: u64, grace: Duration) -> Option<Instant> {
        let (now, end) = (Instant::now(), self.end_of_patience);
        let mut next: Option<Instant> = None;
        for entry in self.before(place).filter(|entry| entry.stalled_since.is_some() && !entry.is_cut) {
            // A reading client can make its connection wait, too, for a moment, if it has much to read.
            let end = end.zip(entry.stalled_since).map(|(end, since)| end.max(since + MIN_GRACE));
            match [entry.end_of_patience(grace), end].into_iter().flatten().min() {
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

impl Departures {
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
        // Hang-ups and errors are reported unasked.
        epoll::add(&self.closed, &socket, epoll::EventData::new_u64(id), epoll::EventFlags::RDHUP)?;
        state.next_id += 1;
        let entry = Entry {
            socket: Arc::clone(&socket),
            place: None,
            stalled_since: Some(Instant::now()),
            stalled: Duration::ZERO,
            is_cut: false,
        };
        state.connections.insert(id, entry);
        self.count.fetch_add(1, SeqCst);
        self.tcp_count.fetch_add(usize::from(is_tcp), SeqCst);
        drop(state);
        let admissions = self.admissions.load(SeqCst);
        Ok(Member { departures: Arc::clone(self), id, socket, is_tcp, admissions })
    }

    /// Closes all connections for receiving.
    pub(super) fn end(&self) -> io::Result<()> {
        let mut state = self.lock();
        // Before any is closed: what a TCP connection receives after that finds it set.
        self.is_ending.store(true, SeqCst);
        // A connection whose client does not read leaves the others time for their replies, before the server cuts all.
        state.end_of_patience = Instant::now().checked_add(self.grace / 2);
        state.connections.values().for_each(|entry| shut_down(&entry.socket, Shutdown::Read));
        let enqueued = self.enqueue_closed(&mut state);
        drop(state);
        self.changed.notify_all();
        enqueued
    }

    /// Puts those connections into the queue that were closed and are not in it.
    fn enqueue_closed(&self, state: &mut State) -> io::Result<()> {
        let mut closed = vec![NO_EVENT; state.connections.len().max(1)];
        let count = retry_on_intr(|| epoll::wait(&self.closed, &mut closed[..], Some(&AT_ONCE)))?;
        for event in &closed[..count] {
            if let Some(entry) = state.connections.get_mut(&{ event.data }.u64())
                && entry.place.is_none()
            {
                entry.place = Some(state.next_place);
                // Before it was closed, no connection waited for it.
                entry.stalled_since = entry.stalled_since.map(|_| Instant::now());
                entry.stalled = Duration::ZERO;
                state.next_place += 1;
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

/// A connection among the others. Dropped after its last request has run.
#[derive(Debug)]
pub(super) struct Member {
    departures: Arc<Departures>,
    id: u64,
    socket: Arc<OwnedFd>,
    is_tcp: bool,
    /// What the counter of admissions would be, had there been no others since this connection joined.
    admissions: u64,
}

impl Member {
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Waits until what was received may run. False if it must not, and the connection has ended.
    #[inline]
    pub(super) fn admit(&mut self) -> io::Result<bool> {
        let departures = &*self.departures;
        if self.is_tcp && departures.is_ending.load(SeqCst) {
            tracing::debug!("dropped requests that came over TCP while the server ends");
            return Ok(false);
        }
        let mut is_overtaken = false;
        // Counted before the other connections are looked at: of two that are admitted at a time, the one whose end is there
        // sees that of the other, or is seen closed by it.
        if departures.tcp_count.load(SeqCst) > 0 {
            let admissions = departures.admissions.fetch_add(1, SeqCst);
            is_overtaken = self.is_tcp && admissions != self.admissions;
            self.admissions += 1;
        }
        if (departures.count.load(SeqCst) > 1 || is_overtaken) && departures.is_any_closed()? {
            return self.admit_in_order(is_overtaken);
        }
        Ok(true)
    }

    #[cold]
    fn admit_in_order(&self, is_overtaken: bool) -> io::Result<bool> {
        let departures = &*self.departures;
        let mut state = departures.lock();
        departures.enqueue_closed(&mut state)?;
        let own = state.connections.get(&self.id).and_then(|entry| entry.place);
        if is_overtaken && own.is_some() {
            tracing::debug!("dropped the last requests of a TCP connection, which may have been sent again");
            return Ok(false);
        }
        let place = own.unwrap_or(state.next_place);
        while state.before(place).next().is_some() {
            // A thread may be sending to a client that has closed one direction and does not read the other.
            state = match state.cut(place, departures.grace) {
                Some(next) => {
                    let left = next.saturating_duration_since(Instant::now());
                    departures.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => departures.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        Ok(true)
    }

    /// Runs `wait`, in which the connection waits for its client to read.
    #[cold]
    pub(super) fn stalled<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.note_stalled(true);
        let result = wait();
        self.note_stalled(false);
        result
    }

    /// The handshake, in which the connection waits for its client, is over.
    pub(super) fn begin_transmission(&self) {
        self.note_stalled(false);
    }

    fn note_stalled(&self, is_stalled: bool) {
        let mut state = self.departures.lock();
        if let Some(entry) = state.connections.get_mut(&self.id) {
            let now = Instant::now();
            entry.stalled += entry.stalled_since.map_or(Duration::ZERO, |since| now.duration_since(since));
            entry.stalled_since = is_stalled.then_some(now);
        }
        drop(state);
        if is_stalled {
            // Others that wait for this one have to know for how long.
            self.departures.changed.notify_all();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let departures = &*self.departures;
        let mut state = departures.lock();
        state.connections.remove(&self.id);
        departures.count.fetch_sub(1, SeqCst);
        departures.tcp_count.fetch_sub(usize::from(self.is_tcp), SeqCst);
        epoll::delete(&departures.closed, &self.socket).expect("the socket was added, and is open");
        drop(state);
        departures.changed.notify_all();
    }
}

/// Closes a socket in one direction.
fn shut_down(socket: &OwnedFd, how: Shutdown) {
    if let Err(error) = rustix::net::shutdown(socket, how) {
        tracing::debug!(%error, "a client was gone already");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A client may have closed its side just before the server did, and what was received since could come from it.
    #[test]
    fn connections_that_the_server_closes_run_in_order_behind_those_that_clients_closed() {
        let departures = Arc::new(Departures::new(Duration::MAX).unwrap());
        let joined = || {
            let (client, server) = UnixStream::pair().unwrap();
            (client, departures.join(server.into(), false).unwrap())
        };
        let ((_first, mut first), (_second, mut second), (closed, mut earlier)) =
            (joined(), joined(), joined());
        closed.shutdown(std::net::Shutdown::Write).unwrap();
        departures.end().unwrap();
        assert!(earlier.admit().unwrap());
        std::thread::scope(|threads| {
            let (admitted, order) = channel();
            let its = admitted.clone();
            threads.spawn(move || its.send((2, second.admit().unwrap())).unwrap());
            threads.spawn(move || {
                let is_admitted = first.admit().unwrap();
                // Before it is dropped, and the other goes on.
                admitted.send((1, is_admitted)).unwrap();
            });
            assert_eq!(order.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
            drop(earlier);
            assert_eq!(order.recv_timeout(PATIENCE), Ok((1, true)));
            assert_eq!(order.recv_timeout(PATIENCE), Ok((2, true)));
        });
    }
}
