//! The counters of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A view of a running server's counters. Cheap to clone; outlives the server.
#[derive(Clone, Debug, Default)]
pub struct NbdStats(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    clients: AtomicU64,
    clients_total: AtomicU64,
    clients_refused: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The counters at about one moment: each is exact, but they are not read at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NbdCounts {
    /// Clients in the transmission phase now.
    pub clients: u64,
    /// All clients that reached it.
    pub clients_total: u64,
    /// Clients that were disconnected because there were too many.
    pub clients_refused: u64,
    /// Requests answered, including those with an error.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients; zeroing and trimming do not count.
    pub written_bytes: u64,
}

impl NbdStats {
    /// The counters now.
    #[must_use]
    pub fn counts(&self) -> NbdCounts {
        let c = &*self.0;
        NbdCounts {
            clients: c.clients.load(Relaxed),
            clients_total: c.clients_total.load(Relaxed),
            clients_refused: c.clients_refused.load(Relaxed),
            requests: c.requests.load(Relaxed),
            errors: c.errors.load(Relaxed),
            read_bytes: c.read_bytes.load(Relaxed),
            written_bytes: c.written_bytes.load(Relaxed),
        }
    }

    pub(super) fn client_connected(&self) {
        self.0.clients.fetch_add(1, Relaxed);
        self.0.clients_total.fetch_add(1, Relaxed);
    }

    pub(super) fn client_disconnected(&self) {
        self.0.clients.fetch_sub(1, Relaxed);
    }

    pub(super) fn client_refused(&self) {
        self.0.clients_refused.fetch_add(1, Relaxed);
    }

    /// Adds a connection's counts, and resets them.
    pub(super) fn add(&self, tally: &mut Tally) {
        let Tally { requests, errors, read_bytes, written_bytes } = std::mem::take(tally);
        for (counter, more) in [
            (&self.0.requests, requests),
            (&self.0.errors, errors),
            (&self.0.read_bytes, read_bytes),
            (&self.0.written_bytes, written_bytes),
        ] {
            if more != 0 {
                counter.fetch_add(more, Relaxed);
            }
        }
    }
}

/// One connection's counts, which it adds to the shared ones once a batch, not once a request.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}
