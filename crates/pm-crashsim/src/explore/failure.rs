//! A crash that was not recovered from, told so that it can be understood and repeated.

use super::Coverage;
use super::replay::ReplayCrash;
use crate::chunk::Chunk;
use crate::span::LINE;
use crate::trace::{Event, EventKind, Trace};
use core::fmt;
use std::panic::Location;

/// How many stores a report names before it only counts them.
const NAMED_STORES: usize = 24;

/// Why an exploration failed: the crashes, one inside the recovery from the other, and what the check said.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test tells the story.
#[derive(Clone)]
#[non_exhaustive]
pub struct Failure {
    /// What the check, or the operation, said.
    pub message: String,
    /// The crashes that led there, in order. Empty when the operation failed with no crash.
    pub crashes: Vec<CrashReport>,
    /// What [`Explorer::replay`](crate::Explorer::replay) takes to repeat just these crashes.
    pub replay: Option<String>,
    /// What had been tried until then.
    pub coverage: Coverage,
    pub(super) path: Vec<ReplayCrash>,
}

/// One crash: when, and what it took.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CrashReport {
    /// When it struck.
    pub moment: Moment,
    /// Stores that were pending and were lost.
    pub lost: Vec<PendingStore>,
    /// Stores that were pending and had reached the medium.
    pub kept: Vec<PendingStore>,
}

/// When a crash struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// Right before what stands at this location took effect.
    Before(&'static str, &'static Location<'static>),
    /// Right after the acknowledgement at this location.
    AfterAck(&'static Location<'static>),
    /// After all that was recorded.
    End,
}

/// What one store did to one line, as far as it is lost or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingStore {
    /// The first byte of the line.
    pub line_offset: u64,
    /// The first of the bytes.
    pub offset: u64,
    /// How many bytes. With gaps between them, if the store was torn.
    pub len_bytes: u64,
    /// Where in the source it was stored.
    pub location: &'static Location<'static>,
}

impl Failure {
    pub(crate) const fn new(message: String, coverage: Coverage) -> Self {
        Self { message, crashes: Vec::new(), replay: None, coverage, path: Vec::new() }
    }
}

impl CrashReport {
    /// Reports that of `pending` only `kept` survived.
    pub(super) fn new(moment: Moment, trace: &Trace, pending: &[Chunk], kept: &[Chunk]) -> Self {
        let is_kept = |chunk: &Chunk| kept.iter().any(|k| (k.event, k.word) == (chunk.event, chunk.word));
        let (kept, lost) = pending.iter().partition(|chunk| is_kept(chunk));
        Self { moment, lost: by_line_and_store(trace, lost), kept: by_line_and_store(trace, kept) }
    }
}

fn by_line_and_store(trace: &Trace, mut chunks: Vec<Chunk>) -> Vec<PendingStore> {
    chunks.sort_by_key(|chunk| (chunk.line(), chunk.event, chunk.word));
    let same = |a: &Chunk, b: &Chunk| (a.line(), a.event) == (b.line(), b.event);
    let stores = chunks.chunk_by(same).map(|store| PendingStore {
        line_offset: store[0].line() * LINE as u64,
        offset: store[0].offset() + u64::from(store[0].mask.trailing_zeros()),
        len_bytes: store.iter().map(|chunk| u64::from(chunk.mask.count_ones())).sum(),
        location: trace.events()[store[0].event].location,
    });
    stores.collect()
}

impl Moment {
    pub(super) const fn before(event: &Event) -> Self {
        let what = match event.kind {
            EventKind::Store { .. } | EventKind::StoreNt { .. } => "store",
            EventKind::Exchange { .. } => "exchange",
            EventKind::Flush { .. } | EventKind::FlushOrdered { .. } => "flush",
            EventKind::Fence | EventKind::FullFence => "fence",
            EventKind::Ack => "acknowledgement",
        };
        Self::Before(what, event.location)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(what, location) => write!(f, "right before the {what} at {location}"),
            Self::AfterAck(location) => write!(f, "right after the acknowledgement at {location}"),
            Self::End => f.write_str("at the end"),
        }
    }
}

impl fmt::Display for PendingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line_offset, offset, len_bytes, location } = self;
        write!(f, "line {line_offset:#x}: {len_bytes} bytes from {offset:#x}, stored at {location}")
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash {}", self.moment)?;
        for (what, stores) in [("lost", &self.lost), ("kept", &self.kept)] {
            for store in stores.iter().take(NAMED_STORES) {
                write!(f, "\n    {what} {store}")?;
            }
            if let Some(more) = stores.len().checked_sub(NAMED_STORES).filter(|&more| more > 0) {
                write!(f, "\n    {what} {more} more")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        for (number, crash) in self.crashes.iter().enumerate() {
            let nested = if number == 0 { "" } else { ", in recovery" };
            write!(f, "\n  {}.{nested} {crash}", number + 1)?;
        }
        if let Some(replay) = &self.replay {
            write!(f, "\n  repeat it with Explorer::replay(\"{replay}\")")?;
        }
        write!(f, "\n  {}", self.coverage)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Failure {}
