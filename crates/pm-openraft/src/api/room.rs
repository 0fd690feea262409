//! What a node has room for.

use crate::error::StorageError;
use crate::program::Program;
use crate::storage::Core;
use pm_btree::Room as StoreRoom;
use pm_core::Pmem;

/// What an entry of the log has besides its command, about.
const ENTRY_BYTES: u64 = 16;

/// What the store of a node has room for, in the log and in the state, as it was when [`Storage::room`](super::Storage::room) returned this.
///
/// A node whose store is full when an entry comes stops, and so do the others, if theirs are as full. So a leader takes what a command needs from this before
/// it proposes it, and keeps a part of the store for what differs between nodes. [`pm_btree::Room`] tells what is counted. The commands that were
/// proposed before this was measured must have been applied.
#[derive(Clone, Debug)]
pub struct Room(StoreRoom);

impl Room {
    pub(super) fn measure<C: Program, P: Pmem + Send + Sync + 'static>(
        core: &Core<C, P>,
        entry_bytes: u64,
    ) -> Result<Self, StorageError> {
        Ok(Self(core.store().room(entry_bytes.saturating_add(ENTRY_BYTES))?))
    }

    /// The space, in bytes, that serves entries and values of any length up to the one that was asked for.
    #[must_use]
    pub const fn whole_bytes(&self) -> u64 {
        self.0.whole_bytes()
    }

    /// Lets the space that serves any length have at most this length: another node has no more. Then nothing that is free beside that counts.
    pub fn limit(&mut self, whole_bytes: u64) {
        self.0.limit(whole_bytes);
    }

    /// Takes what the log needs for an entry whose command has this length in postcard's encoding. False, and nothing is taken, if that is not there, or less than
    /// `kept_bytes` of whole space would be left.
    #[must_use]
    pub fn take_entry(&mut self, command_bytes: u64, kept_bytes: u64) -> bool {
        self.0.take_for_number(command_bytes.saturating_add(ENTRY_BYTES), kept_bytes)
    }

    /// Takes what the state needs for a key that gets a value. A key that loses its value needs nothing. Otherwise as [`take_entry`](Self::take_entry).
    #[must_use]
    pub fn take_value(&mut self, key_bytes: u64, value_bytes: u64, kept_bytes: u64) -> bool {
        self.0.take(key_bytes, value_bytes, kept_bytes)
    }
}
