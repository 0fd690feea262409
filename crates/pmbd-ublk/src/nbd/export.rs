//! What clients are told about the device.

use super::NbdOptions;
use super::protocol::flag;
use crate::Engine;
use pm_core::Pmem;

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
        let geometry = engine.geometry();
        Self {
            name: options.export_name.clone(),
            description: options.description.clone(),
            size_bytes: geometry.capacity_bytes(),
            read_only: engine.is_read_only(),
        }
    }

    /// Whether a client that asks for `name` means this export. The empty name is everybody's default.
    pub(super) fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags.
    ///
    /// Flush and FUA are offered whatever the write cache: with a write-through engine they cost a client nothing,
    /// with a write-back one they are what it needs. Fast zeroes are honest, for zeroing moves no payload.
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
