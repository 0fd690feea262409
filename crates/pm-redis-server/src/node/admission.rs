//! Which writes are proposed: those for which the store has room. A node whose store is full when an entry comes stops.

use crate::program::{Command, Map};
use crate::redis::REQUEST_BYTES;
use pm_openraft::{Room, Storage, StorageError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The length of the longest entry: a command is shorter than its request.
pub(super) const LONGEST_ENTRY_BYTES: u64 = 260 << 10;
const _: () = assert!(LONGEST_ENTRY_BYTES > REQUEST_BYTES as u64);

/// The part of the store that is kept whole, to serve any length, and that which removals leave, since their entries take space in the log. It is for
/// what differs between the nodes: in which lengths their stores are divided, and how much of the log they have.
const KEPT: u64 = 8;
const KEPT_OF_REMOVALS: u64 = 16;

/// How long a store that was full as it was measured is taken to be so.
const FULL: Duration = Duration::from_millis(200);

/// The part of the store besides that which is kept, from which on a store is nearly full, and the part of the time that measuring takes then at most.
const NEARLY: u64 = 64;
const MEASURING: u32 = 10;

/// Whether there is room for a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Yes,
    /// There is none, for this reason.
    No(String),
    /// The store must be measured, when nothing is on its way to it.
    Unclear,
}

/// The room of the store of another node in whole pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoomOf {
    pub(super) node: u64,
    pub(super) whole_bytes: u64,
}

/// The length of a store.
pub(super) fn store_bytes(storage: &Storage<Map>) -> u64 {
    storage.store().heap().pool().data().end
}

/// Whether the store has no room for one more of the longest writes.
pub(super) fn is_full(room: &Room, store_bytes: u64) -> bool {
    let (mut left, kept_bytes) = (room.clone(), store_bytes / KEPT);
    !left.take_entry(LONGEST_ENTRY_BYTES, kept_bytes)
        || !left.take_value(LONGEST_ENTRY_BYTES / 2, LONGEST_ENTRY_BYTES / 2, kept_bytes)
}

/// The room of the store of a leader.
pub(super) struct Admission {
    storage: Arc<Storage<Map>>,
    measured: Option<Measured>,
}

struct Measured {
    room: Room,
    /// What is left of it when the log has the entry that is gathered, too.
    after_entry: Room,
    /// The term of the leader. The entries of another one are not counted.
    term: u64,
    store_bytes: u64,
    at: Instant,
    took: Duration,
    /// The node with the least room, if it is another one.
    least: Option<u64>,
    is_nearly_full: bool,
    /// Whether nothing was admitted since.
    is_new: bool,
}

impl Measured {
    fn new(storage: &Storage<Map>, term: u64) -> Result<Self, StorageError> {
        let room = storage.room(LONGEST_ENTRY_BYTES)?;
        let (store_bytes, at) = (store_bytes(storage), Instant::now());
        Ok(Self {
            after_entry: room.clone(),
            room,
            term,
            store_bytes,
            at,
            took: Duration::ZERO,
            least: None,
            is_nearly_full: false,
            is_new: true,
        })
    }
}

impl Admission {
    pub(super) const fn new(storage: Arc<Storage<Map>>) -> Self {
        Self { storage, measured: None }
    }

    /// The length of the store.
    pub(super) fn store_bytes(&self) -> u64 {
        store_bytes(&self.storage)
    }

    /// Whether the store was measured in this term.
    pub(super) fn is_of(&self, term: u64) -> bool {
        self.measured.as_ref().is_some_and(|measured| measured.term == term)
    }

    /// Measures the store of the leader of a term. All entries of its log have been applied. `least` is the least room of another node, known after that. What
    /// is free in extents of a store that was just opened is not counted until they were visited.
    pub(super) async fn measure(
        &mut self,
        term: u64,
        least: impl Future<Output = Option<RoomOf>>,
    ) -> Result<(), StorageError> {
        let start = Instant::now();
        let least = least.await;
        let storage = Arc::clone(&self.storage);
        self.measured = None;
        let measured = tokio::task::spawn_blocking(move || Measured::new(&storage, term)).await;
        let mut measured = measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        if let Some(RoomOf { node, whole_bytes }) = least
            && whole_bytes < measured.room.whole_bytes()
        {
            measured.room.limit(whole_bytes);
            measured.least = Some(node);
        }
        let nearly_bytes = measured.store_bytes / KEPT + measured.store_bytes / NEARLY;
        measured.is_nearly_full = measured.room.whole_bytes() < nearly_bytes;
        measured.took = start.elapsed();
        self.measured = Some(measured);
        Ok(())
    }

    /// Takes the room of a write, if it is there; also for its entry, whose commands have a length together with this one.
    pub(super) fn admit(&mut self, command: &Command, entry_bytes: u64) -> Admitted {
        let Some(Measured {
            room, after_entry, store_bytes, at, took, least, is_nearly_full, is_new, ..
        }) = &mut self.measured
        else {
            return Admitted::Unclear;
        };
        // A full store is emptied by removals, or left for the longer ones of other nodes, which are registered then.
        let kept_bytes = match command {
            Command::Register { .. } => 0,
            Command::Remove(_) => *store_bytes / KEPT_OF_REMOVALS,
            _ => *store_bytes / KEPT,
        };
        let mut left = room.clone();
        // What fits between others may need more than is known. So below the floor there are only removals.
        let has_floor =
            kept_bytes < *store_bytes / KEPT || room.whole_bytes() >= *store_bytes / KEPT_OF_REMOVALS;
        let has_room =
            has_floor && command.values().all(|(key, value)| left.take_value(key, value, kept_bytes));
        let mut left_after = left.clone();
        if has_room && left_after.take_entry(entry_bytes, kept_bytes)
            || matches!(command, Command::Register { .. })
        {
            (*room, *after_entry, *is_new) = (left, left_after, false);
            return Admitted::Yes;
        }
        let settled = match (*is_new, *is_nearly_full) {
            (true, _) => FULL,
            (false, true) => *took * (MEASURING - 1),
            (false, false) => Duration::ZERO,
        };
        if at.elapsed() >= settled {
            return Admitted::Unclear;
        }
        Admitted::No(match least {
            None => "the store is full".to_owned(),
            Some(node) => format!("the store is full at node {node}"),
        })
    }

    /// Takes the room of the entry that was gathered.
    pub(super) fn end_entry(&mut self) {
        if let Some(Measured { room, after_entry, .. }) = &mut self.measured {
            room.clone_from(after_entry);
        }
    }
}
