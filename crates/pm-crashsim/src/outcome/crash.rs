//! One crash of a failure: when it struck, what it took and what it left.

use crate::line::LINE;
use crate::model::{Choices, Chunk, IllegalCrash, Machine, Rules, Survivor};
use crate::trace::{Event, EventKind, Trace};
use crate::{Image, SourceLocation};
use core::fmt;
use std::collections::BTreeSet;

/// One crash: when, and what it took.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CrashReport {
    /// When it struck.
    pub moment: Moment,
    /// Stores that were pending and were lost, wholly or in part.
    pub lost: Vec<PendingStore>,
    /// Stores that were pending and had reached the medium, wholly or in part; essential ones first.
    pub kept: Vec<PendingStore>,
    /// Whether the crash was shrunk: without the loss of any one line in [`lost`](Self::lost) the check passes.
    pub is_minimal: bool,
    /// All of it, for tools.
    pub record: CrashRecord,
}

/// One crash in full: what the region held, what was done to it until the crash, and what of that survived.
#[derive(Clone, Debug)]
pub struct CrashRecord {
    rules: Rules,
    start: Image,
    trace: Trace,
    events: usize,
    kept: Vec<Survivor>,
}

/// When a crash struck.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// Right before what stands at this location took effect.
    Before(&'static str, SourceLocation),
    /// Right after the acknowledgement at this location.
    AfterAck(SourceLocation),
    /// After all that was recorded.
    End,
    /// It was no crash: the process was killed there, and the caches were kept. It is the next process that failed, with no
    /// crash.
    Killed(Box<Moment>),
}

/// What one store did to one line, as far as it is lost or kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingStore {
    /// The number of the store in the trace.
    pub event: usize,
    /// Whether the failure needs this one to be as it is. Known only of crashes that were shrunk: of what was lost,
    /// all is essential; of what was kept, that without which the check passes, all else that was kept being lost.
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
    /// What the crash left: what was durable for sure, and the survivors. Replays the run up to the crash.
    ///
    /// # Errors
    /// For a record that was read from a file, and keeps what the model does not allow.
    pub fn image(&self) -> Result<Image, IllegalCrash> {
        let machine = self.machine();
        let mut survivors = Choices::of(&machine).exactly(&self.kept)?;
        Ok(machine.image(&mut survivors))
    }

    /// What the region held before the run.
    #[must_use]
    pub const fn start(&self) -> &Image {
        &self.start
    }

    /// The whole run. What follows the crash would have happened without it.
    #[must_use]
    pub const fn trace(&self) -> &Trace {
        &self.trace
    }

    /// How many events of the run had happened when the crash struck.
    #[must_use]
    pub const fn events(&self) -> usize {
        self.events
    }

    /// What survived of the stores that were pending, in no particular order.
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

    /// The model, with the choices that it leaves open.
    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }
}

impl CrashReport {
    /// Reports that of `pending` only what the record keeps survived. If the crash was shrunk, `essential` are the
    /// survivors that matter.
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

/// The chunks, put together again as stores.
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
    /// When that many events had happened, and the process was killed.
    pub(crate) fn killed(trace: &Trace, events: usize) -> Self {
        Self::Killed(Box::new(Self::after(trace, events)))
    }

    /// When that many events had happened.
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
