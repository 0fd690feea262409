//! The record of a run, in the order in which its events became visible.

use crate::line::{fingerprint_of, lines};
use crate::location::{LocationId, Locations, SourceLocation};
use core::ops::Range;
use crc32c::crc32c_append;
use indexmap::IndexSet;
use std::panic::Location;
use std::sync::Arc;

/// One event of a run that matters to durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// The thread: threads are numbered by first appearance.
    pub thread: u32,
    /// The place in the source, for [`Trace::location`].
    pub location: LocationId,
}

/// The position of a store's bytes in a [`Trace`]; [`Trace::data`] returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSpan {
    start: usize,
    len: usize,
}

/// The kind of an [`Event`]. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A load. Recorded only if needed.
    Load {
        /// The first byte.
        offset: u64,
        /// How many bytes.
        len_bytes: u64,
    },
    /// A write-back store.
    Store {
        /// The first byte.
        offset: u64,
        /// What was written.
        data: DataSpan,
    },
    /// A write-back store of an aligned pair of words in one piece: under every model but
    /// [`Chunk8`](crate::Model::Chunk8), a crash keeps both words or none.
    StoreU128 {
        /// The first byte, a multiple of 16.
        offset: u64,
        /// What was written: 16 bytes.
        data: DataSpan,
    },
    /// A non-temporal store: durable at its thread's next fence, ragged ends included, and nothing else of its lines.
    StoreNt {
        /// The first byte.
        offset: u64,
        /// What was written.
        data: DataSpan,
    },
    /// A successful compare-exchange: a locked read-modify-write of one word.
    Exchange {
        /// The first byte.
        offset: u64,
        /// What was written.
        data: DataSpan,
    },
    /// `clwb` or `clflushopt` of every line that the range touches.
    Flush {
        /// The first byte.
        offset: u64,
        /// How many bytes.
        len_bytes: u64,
    },
    /// `clflush` of every line that the range touches.
    FlushOrdered {
        /// The first byte.
        offset: u64,
        /// How many bytes.
        len_bytes: u64,
    },
    /// The seam's fence: `sfence`, or `msync` in the page domain.
    Fence,
    /// `mfence`.
    FullFence,
    /// The test marked the end of an operation.
    Ack,
    /// The process was killed, the caches were kept, and later events are another process's. Unfenced flushes have no effect.
    Kill,
}

impl DataSpan {
    /// How many bytes were written.
    #[must_use]
    pub const fn len_bytes(self) -> u64 {
        self.len as u64
    }

    const fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

impl EventKind {
    /// The name of the kind, in reports and for filters.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Load { .. } => "load",
            Self::Store { .. } => "store",
            Self::StoreU128 { .. } => "store_u128",
            Self::StoreNt { .. } => "store_nt",
            Self::Exchange { .. } => "exchange",
            Self::Flush { .. } => "flush",
            Self::FlushOrdered { .. } => "clflush",
            Self::Fence => "fence",
            Self::FullFence => "mfence",
            Self::Ack => "acknowledgement",
            Self::Kill => "kill",
        }
    }

    /// The first byte of the event, and the number of bytes; `None` for fences and acknowledgements.
    #[must_use]
    pub const fn extent(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Load { offset, len_bytes }
            | Self::Flush { offset, len_bytes }
            | Self::FlushOrdered { offset, len_bytes } => Some((offset, len_bytes)),
            Self::Store { offset, data }
            | Self::StoreU128 { offset, data }
            | Self::StoreNt { offset, data }
            | Self::Exchange { offset, data } => Some((offset, data.len_bytes())),
            Self::Fence | Self::FullFence | Self::Ack | Self::Kill => None,
        }
    }

    /// The position of the stored bytes; `None` unless it is a store.
    #[must_use]
    pub const fn data(&self) -> Option<DataSpan> {
        match *self {
            Self::Store { data, .. }
            | Self::StoreU128 { data, .. }
            | Self::StoreNt { data, .. }
            | Self::Exchange { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Whether it only reads.
    #[must_use]
    pub const fn is_load(&self) -> bool {
        matches!(self, Self::Load { .. })
    }

    /// Whether it writes lines back.
    #[must_use]
    pub const fn is_flush(&self) -> bool {
        matches!(self, Self::Flush { .. } | Self::FlushOrdered { .. })
    }

    /// The same with its bytes at another position.
    fn with_data(self, keep: impl FnOnce(DataSpan) -> DataSpan) -> Self {
        match self {
            Self::Store { offset, data } => Self::Store { offset, data: keep(data) },
            Self::StoreU128 { offset, data } => Self::StoreU128 { offset, data: keep(data) },
            Self::StoreNt { offset, data } => Self::StoreNt { offset, data: keep(data) },
            Self::Exchange { offset, data } => Self::Exchange { offset, data: keep(data) },
            other => other,
        }
    }

    /// Whether it makes bytes pending.
    #[must_use]
    pub const fn is_store(&self) -> bool {
        self.data().is_some()
    }
}

/// The events of one run.
///
/// The stored bytes lie in one buffer, and the places in the source in one table: recording allocates nothing for a store.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    events: Vec<Event>,
    data: Vec<u8>,
    /// Shared with the traces of other runs, until one of them adds a place.
    locations: Arc<Locations>,
}

impl Trace {
    /// The events, in the order in which they became visible.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The bytes of a store.
    ///
    /// # Panics
    /// When the span is of another trace.
    #[must_use]
    pub fn data(&self, span: DataSpan) -> &[u8] {
        &self.data[span.range()]
    }

    /// The place in the source.
    ///
    /// # Panics
    /// When the number is of another trace.
    #[must_use]
    pub fn location(&self, id: LocationId) -> &SourceLocation {
        self.locations.get(id)
    }

    /// Where in the source an event was.
    ///
    /// # Panics
    /// When there is no event with that number.
    #[must_use]
    pub fn location_of(&self, event: usize) -> &SourceLocation {
        self.location(self.events[event].location)
    }

    /// A trace with only the events for which `keep` holds.
    #[must_use]
    pub fn filtered(&self, mut keep: impl FnMut(usize, &Event) -> bool) -> Self {
        let mut kept = Self::default();
        for (number, event) in self.events.iter().enumerate() {
            if keep(number, event) {
                kept.copy(self, event, self.location(event.location).clone());
            }
        }
        kept
    }

    /// The same events at other places in the source: `location` maps the number of an event to its place.
    #[must_use]
    pub fn relocated(&self, mut location: impl FnMut(usize) -> SourceLocation) -> Self {
        let mut moved = Self::default();
        for (number, event) in self.events.iter().enumerate() {
            moved.copy(self, event, location(number));
        }
        moved
    }

    /// Appends an event of another trace.
    fn copy(&mut self, other: &Self, event: &Event, location: SourceLocation) {
        let location = self.locations_mut().intern(location);
        let kind = event.kind.with_data(|span| self.keep(other.data(span)));
        self.push(Event { kind, thread: event.thread, location });
    }

    /// The number of events other than loads among the first `events`. Loads change nothing, and are recorded only if needed.
    pub(crate) fn position(&self, events: usize) -> usize {
        self.events[..events].iter().filter(|event| !event.kind.is_load()).count()
    }

    /// The number of events up to that position; `None` if there are fewer.
    pub(crate) fn events_at(&self, position: usize) -> Option<usize> {
        let ends = self.events.iter().enumerate().filter(|(_, event)| !event.kind.is_load());
        let mut ends = core::iter::once(0).chain(ends.map(|(number, _)| number + 1));
        ends.nth(position)
    }

    /// A checksum of the events and their data, without loads and places in the source: runs with equal marks are equal, up to a
    /// probability of one in four billion.
    #[must_use]
    pub fn mark(&self) -> u32 {
        let writes = self.events.iter().filter(|event| !event.kind.is_load());
        let of_events = writes.fold(0, |mark, event| {
            let (offset, len_bytes) = event.kind.extent().unwrap_or_default();
            let mark = crc32c_append(mark, event.kind.name().as_bytes());
            let mark = crc32c_append(mark, &event.thread.to_le_bytes());
            crc32c_append(crc32c_append(mark, &offset.to_le_bytes()), &len_bytes.to_le_bytes())
        });
        crc32c_append(of_events, &self.data)
    }

    /// Identifies the run among runs whose places have the same numbers: events, order, threads, places and data.
    pub(crate) fn fingerprint(&self) -> u128 {
        let events = self.events.iter().flat_map(|event| {
            let (offset, len_bytes) = event.kind.extent().unwrap_or_default();
            // No two kinds have names that agree in the first eight bytes.
            let kind = event.kind.name().bytes().take(8).fold(0, |word, byte| word << 8 | u64::from(byte));
            let place = u64::from(event.thread) << 32 | u64::from(event.location.0);
            [kind, place, offset, len_bytes]
        });
        let (words, rest) = self.data.as_chunks();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        fingerprint_of(events.chain(words).chain(rest.iter().copied().map(u64::from)))
    }

    /// The lines that its stores touch.
    pub(crate) fn lines_stored(&self) -> impl Iterator<Item = u64> {
        let stores = self.events.iter().filter(|event| event.kind.is_store());
        stores
            .filter_map(|event| event.kind.extent())
            .flat_map(|(offset, len_bytes)| lines(offset, len_bytes))
    }

    /// The number of acknowledgements among the first `events`.
    pub(crate) fn acks(&self, events: usize) -> usize {
        self.events[..events].iter().filter(|event| matches!(event.kind, EventKind::Ack)).count()
    }

    /// The first `events`, and then a kill, at the place of the next event.
    pub(crate) fn killed(&self, events: usize) -> Self {
        let mut killed = Self { events: self.events[..events].to_vec(), ..Self::default() };
        killed.locations = Arc::clone(&self.locations);
        let data = killed.events.iter().rev().find_map(|event| event.kind.data());
        killed.data.extend_from_slice(&self.data[..data.map_or(0, |span| span.range().end)]);
        if let Some(last) = self.events.get(events).or_else(|| self.events.last()) {
            let Event { thread, location, .. } = *last;
            killed.push(Event { kind: EventKind::Kill, thread, location });
        }
        killed
    }

    /// Appends the run of another process, whose places are numbered as here or newer. Its threads are new ones.
    pub(crate) fn extend(&mut self, process: &Self) {
        let threads = self.events.iter().map(|event| event.thread + 1).max().unwrap_or(0);
        let start = self.data.len();
        self.data.extend_from_slice(&process.data);
        self.locations = Arc::clone(&process.locations);
        self.events.extend(process.events.iter().map(|event| {
            let kind = event.kind.with_data(|span| DataSpan { start: start + span.start, ..span });
            Event { kind, thread: threads + event.thread, ..*event }
        }));
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Keeps a copy of `bytes` for an event.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> DataSpan {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        DataSpan { start, len: bytes.len() }
    }

    /// The events and their data, taken out; the places stay known.
    pub(crate) fn take(&mut self) -> Self {
        let locations = Arc::clone(&self.locations);
        core::mem::replace(self, Self { locations, ..Self::default() })
    }

    /// Every place that the trace names.
    pub(crate) fn locations(&self) -> &IndexSet<SourceLocation> {
        self.locations.all()
    }

    pub(crate) fn locations_mut(&mut self) -> &mut Locations {
        Arc::make_mut(&mut self.locations)
    }

    /// The number of a place in this program.
    pub(crate) fn locate(&mut self, location: &'static Location<'static>) -> LocationId {
        let known = self.locations.known(location);
        known.unwrap_or_else(|| self.locations_mut().of_caller(location))
    }

    /// The table of the places, to share with another run.
    pub(crate) const fn places(&self) -> &Arc<Locations> {
        &self.locations
    }

    /// Starts with the places of other runs and their numbers.
    pub(crate) fn share_places(&mut self, places: &Arc<Locations>) {
        self.locations = Arc::clone(places);
    }
}
