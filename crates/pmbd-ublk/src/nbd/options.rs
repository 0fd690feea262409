//! What can be chosen about a server.

use super::NbdError;
use super::protocol::MAX_STRING_BYTES;
use std::time::Duration;

/// How a server presents the device and treats its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// The export's name, beside the empty name, which every client may use. Empty unless said.
    pub export_name: String,
    /// A text for humans, shown by `nbdinfo`. Empty: none.
    pub description: String,
    /// The largest number of clients at a time, those that are shaking hands included. Further ones are hung up on.
    /// 64 unless said; each costs a thread and 512 KiB.
    pub max_clients: usize,
    /// How long a client may take from connecting to its first request. 10 s unless said.
    pub handshake_timeout: Duration,
    /// How long a connection polls for the next request before it sleeps. A wakeup costs more than serving a
    /// request, so that polling halves the latency of a busy client. It is given up while it does not pay, one half
    /// of the machine's cores poll at most, and a polling thread lets every other thread go first. Zero: never.
    /// 50 µs unless said.
    pub spin: Duration,
    /// How long requests under way may take to end at shutdown, before their connections are cut. Also how long other clients
    /// wait, in total, until a client that has closed its sending direction reads its replies, before its connection is cut. The time
    /// that the medium takes for its requests does not count. 2 s unless said.
    pub shutdown_grace: Duration,
    /// Whether TCP may listen where other machines reach it. No, unless said: anybody there could read and write
    /// the device.
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
    /// Refuses what no server could be run with.
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
