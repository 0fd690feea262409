//! One crash of a failure: its moment, its lost and its kept stores.

use crate::line::LINE;
use crate::model::{Choices, Chunk, IllegalCrash, Machine, Rules, Survivor};
use crate::trace::{Event, EventKind, Trace};
use crate::{Image, SourceLocation};
use core::fmt;
use std::collections::BTreeSet;

/// One crash: its moment and its effect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CrashReport {
    /// When the crash happened.
    pub moment: Moment,
    /// Pending stores that were lost, wholly or in part.
    pub lost: Vec<PendingStore>,
    /// Pending stores that had reached the medium, wholly or in part; essential ones first.
    pub kept: Vec<PendingStore>,
    /// Whether the crash was shrunk: without the loss of any one line in [`lost`](Self::lost) the check passes.
    pub is_minimal: bool,
    /// The complete data, for tools.
    pub record: CrashRecord,
}

/// One crash in full: the contents of the region, the run until the crash, and the survivors.
#[derive(Clone, Debug)]
pub struct CrashRecord {
    rules: Rules,
    start: Image,
    trace: Trace,
    events: usize,
    kept: Vec<Survivor>,
}

/// When a crash happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// Right before the event at this location took effect.
    Before(&'static str, SourceLocation),
    /// Right after the acknowledgement at this location.
    AfterAck(SourceLocation),
    /// After the last event.
    End,
    /// Not a crash: the process was killed there, and the caches were kept. The next process failed without a crash.
    Killed(Box<Moment>),
}

/// The part of one store to one line that is lost or kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingStore {
    /// The number of the store in the trace.
    pub event: usize,
    /// Whether the failure needs this part to be lost or kept. Known only of crashes that were shrunk: everything lost
    /// is essential; a kept part is if the check passes when all other kept parts are lost and this one too.
    pub is_essential: bool,
    /// The first byte of the line.
    pub line_offset: u64,
    /// The first of the bytes.
    pub offset: u64,
    /// How many bytes. With gaps between them, if the store was torn.
    pub len_bytes: u64,
    /// Where in the source it was stored.
    pub location: SourceLocation,
}

impl CrashRecord {
    /// The contents that the crash left: the durable ones, and the survivors. Replays the run up to the crash.
    ///
    /// # Errors
    /// For a record from a file whose survivors the model does not allow.
    pub fn image(&self) -> Result<Image, IllegalCrash> {
        let machine = self.machine();
        let mut survivors = Choices::of(&machine).exactly(&self.kept)?;
        Ok(machine.image(&mut survivors))
    }

    /// The contents of the region before the run.
    #[must_use]
    pub const fn start(&self) -> &Image {
        &self.start
    }

    /// The whole run. The events after the crash would have happened without it.
    #[must_use]
    pub const fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The number of events before the crash.
    #[must_use]
    pub const fn events(&self) -> usize {
        self.events
    }

    /// The survivors of the pending stores, in no particular order.
    #[must_use]
    pub fn kept(&self) -> &[Survivor] {
        &self.kept
    }

    pub(crate) fn new(machine: &Machine<'_>, events: usize, kept: &[Chunk]) -> Self {
        let kept = kept.iter().map(Chunk::as_survivor).collect();
        Self::from_parts(*machine.rules(), machine.start().clone(), machine.trace().clone(), events, kept)
    }

    pub(crate) const fn from_parts(
        rules: Rules,
        start: Image,
        trace: Trace,
        events: usize,
        kept: Vec<Survivor>,
    ) -> Self {
        Self { rules, start, trace, events, kept }
    }

    /// The state right before the crash.
    pub(crate) fn machine(&self) -> Machine<'_> {
        Machine::at(self.rules, &self.start, &self.trace, self.events)
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }
}

impl CrashReport {
    /// The report of a crash that kept only the record's survivors of `pending`. If the crash was shrunk, `essential` are the survivors that matter.
    pub(crate) fn new(
        record: CrashRecord,
        pending: &[Chunk],
        essential: Option<&BTreeSet<Survivor>>,
    ) -> Self {
        let CrashRecord { trace, events, kept, .. } = &record;
        let survivors: BTreeSet<Survivor> = kept.iter().copied().collect();
        let is_kept = |chunk: &Chunk| survivors.contains(&chunk.as_survivor());
        let (kept, lost): (Vec<Chunk>, Vec<Chunk>) = pending.iter().partition(|chunk| is_kept(chunk));
        let matters = |chunk: &Chunk| essential.is_some_and(|these| these.contains(&chunk.as_survivor()));
        let mut kept = by_line_and_store(trace, kept, matters);
        kept.sort_by_key(|store| !store.is_essential);
        let lost = by_line_and_store(trace, lost, |_| essential.is_some());
        Self { moment: Moment::after(trace, *events), lost, kept, is_minimal: essential.is_some(), record }
    }
}

/// The chunks, joined into stores.
fn by_line_and_store(
    trace: &Trace,
    mut chunks: Vec<Chunk>,
    is_essential: impl Fn(&Chunk) -> bool,
) -> Vec<PendingStore> {
    chunks.sort_by_key(|chunk| (chunk.line(), chunk.event, chunk.word, chunk.first_byte));
    let same = |a: &Chunk, b: &Chunk| (a.line(), a.event) == (b.line(), b.event);
    let stores = chunks.chunk_by(same).map(|store| PendingStore {
        event: store[0].event,
        is_essential: store.iter().any(&is_essential),
        line_offset: store[0].line() * LINE as u64,
        offset: store[0].offset() + u64::from(store[0].mask.trailing_zeros()),
        len_bytes: store.iter().map(|chunk| u64::from(chunk.mask.count_ones())).sum(),
        location: trace.location_of(store[0].event).clone(),
    });
    stores.collect()
}

impl Moment {
    /// After that many events, when the process was killed.
    pub(crate) fn killed(trace: &Trace, events: usize) -> Self {
        Self::Killed(Box::new(Self::after(trace, events)))
    }

    /// After that many events.
    fn after(trace: &Trace, events: usize) -> Self {
        let last = events.checked_sub(1).map(|last| &trace.events()[last]);
        match (last, trace.events().get(events)) {
            (Some(Event { kind: EventKind::Ack, location, .. }), _) => {
                Self::AfterAck(trace.location(*location).clone())
            }
            (_, Some(next)) => Self::Before(next.kind.name(), trace.location(next.location).clone()),
            (_, None) => Self::End,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(what, location) => write!(f, "right before the {what} at {location}"),
            Self::AfterAck(location) => write!(f, "right after the acknowledgement at {location}"),
            Self::End => f.write_str("at the end"),
            Self::Killed(moment) => moment.fmt(f),
        }
    }
}

impl fmt::Display for PendingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line_offset, offset, len_bytes, location, .. } = self;
        write!(f, "line {line_offset:#x}: {len_bytes} bytes from {offset:#x}, stored at {location}")
    }
}
