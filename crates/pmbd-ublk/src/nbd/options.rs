//! How a server presents the device and treats its clients.

use super::error::NbdError;
use super::protocol::{MAX_STRING_BYTES, flag};
use crate::engine::Engine;
use pm_core::Pmem;
use std::time::Duration;

/// How a server presents the device and treats its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// The export's name, in addition to the empty name, which every client may use. Default: empty.
    pub export_name: String,
    /// A text for humans, shown by `nbdinfo`. Default: none.
    pub description: String,
    /// The largest number of clients at a time, those in the handshake included. Further ones are disconnected. Default: 64; each costs a
    /// thread and 512 KiB. TCP has at most three quarters of them, rounded up, so that its clients do not lock those of the Unix socket out.
    pub max_clients: usize,
    /// The longest time from connecting to the first request. Default: 10 s.
    pub handshake_timeout: Duration,
    /// The longest time for which a connection polls for the next request before it sleeps. A wakeup costs more than serving a request, so
    /// polling halves the latency of a busy client. A connection whose requests are rare sleeps at once, at most one half of the
    /// machine's cores poll, and a polling thread yields to every other thread. Zero: never. Default: 50 µs.
    pub spin: Duration,
    /// How long requests under way may take at shutdown before their connections are cut. Also how long other clients wait, in total, for
    /// a client that has closed its sending direction to read its replies, before its connection is cut. The time that the medium takes
    /// for its requests does not count. Default: 2 s.
    pub shutdown_grace: Duration,
    /// Whether TCP may listen on addresses that other machines reach, which lets them read and write the device. Default: no.
    pub allow_remote: bool,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self {
            export_name: String::new(),
            description: String::new(),
            max_clients: 64,
            handshake_timeout: Duration::from_secs(10),
            spin: Duration::from_micros(50),
            shutdown_grace: Duration::from_secs(2),
            allow_remote: false,
        }
    }
}

impl NbdOptions {
    /// Checks every bound.
    pub(super) fn check(&self) -> Result<(), NbdError> {
        for (what, text) in [("name", &self.export_name), ("description", &self.description)] {
            if text.len() > MAX_STRING_BYTES {
                return Err(NbdError::TextTooLong { what, len_bytes: text.len() });
            }
        }
        if self.max_clients == 0 {
            return Err(NbdError::NoClients);
        }
        Ok(())
    }
}

/// The one export, as the handshake describes it.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) size_bytes: u64,
    read_only: bool,
}

impl Export {
    pub(super) fn new<P: Pmem>(engine: &Engine<P>, options: &NbdOptions) -> Self {
        Self {
            name: options.export_name.clone(),
            description: options.description.clone(),
            size_bytes: engine.geometry().capacity_bytes(),
            read_only: engine.is_read_only(),
        }
    }

    /// Whether `name` means this export. The empty name is the default export.
    pub(super) fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags.
    ///
    /// Flush and FUA are offered whatever the write cache: with a write-through engine they cost a client nothing, with a write-back one a
    /// client needs them. Zeroing is always fast, as it transfers no payload.
    pub(super) const fn flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        flags |= if self.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
        };
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}
