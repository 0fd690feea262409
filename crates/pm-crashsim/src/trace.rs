//! What a run did, in the order in which it became visible.

use core::ops::Range;
use std::panic::Location;

/// One step of a run, as far as it matters to durability.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// Who did it, numbered by first appearance.
    pub(crate) thread: u32,
    /// Where in the source.
    pub(crate) location: &'static Location<'static>,
}

#[derive(Clone, Debug)]
pub(crate) enum EventKind {
    /// A write-back store.
    Store { offset: u64, data: Range<usize> },
    /// A non-temporal store; what of it goes around the cache is the machine's to say.
    StoreNt { offset: u64, data: Range<usize> },
    /// A successful compare-exchange: a locked read-modify-write of one word.
    Exchange { offset: u64, data: Range<usize> },
    /// `clwb` or `clflushopt` of every line that the range touches.
    Flush { offset: u64, len_bytes: u64 },
    /// `clflush` of every line that the range touches.
    FlushOrdered { offset: u64, len_bytes: u64 },
    /// The seam's fence: `sfence`, or `msync` in the page domain.
    Fence,
    /// `mfence`.
    FullFence,
    /// The test marked the end of an operation.
    Ack,
}

impl Event {
    /// Whether it makes bytes pending.
    pub(crate) const fn is_store(&self) -> bool {
        matches!(self.kind, EventKind::Store { .. } | EventKind::StoreNt { .. } | EventKind::Exchange { .. })
    }
}

/// The events of one run. The bytes stored lie in one buffer: recording costs no allocation a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    events: Vec<Event>,
    data: Vec<u8>,
}

impl Trace {
    pub(crate) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Keeps a copy of `bytes` for an event.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        start..self.data.len()
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(crate) fn data(&self, range: &Range<usize>) -> &[u8] {
        &self.data[range.clone()]
    }
}
