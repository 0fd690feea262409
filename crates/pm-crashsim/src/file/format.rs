//! The offsets, numbers and flags of a trace file; `docs/format/trace.md` describes them in prose.

use crate::Image;
use crate::model::{Model, Rules};
use crate::outcome::CrashRecord;
use crate::trace::{EventKind, Trace};

/// The first bytes of a trace file.
pub(super) const MAGIC: [u8; 8] = *b"PMCTRACE";

/// The newest version. Each version includes the earlier ones, and a file has the lowest version that has all of its events.
pub(super) const VERSION: u16 = 3;
/// The first version.
pub(super) const OLDEST_VERSION: u16 = 1;
/// The version that added stores of pairs of words.
const STORE_U128_VERSION: u16 = 2;
/// The version that added kills.
const KILL_VERSION: u16 = 3;

/// Offsets in the header.
pub(super) const VERSION_OFFSET: usize = 8;
pub(super) const MODEL_OFFSET: usize = 10;
pub(super) const FLAGS_OFFSET: usize = 11;
pub(super) const RESERVED_OFFSET: usize = 12;
pub(super) const REGION_OFFSET: usize = 16;
/// Where the body begins.
pub(super) const HEADER_BYTES: usize = 24;

/// The checksum at the end.
pub(super) const CRC_BYTES: usize = 4;

/// Acknowledgements may overtake the fence before them.
pub(super) const FLAG_STRICT_ACK: u8 = 1 << 0;
/// A successful compare-exchange fences.
pub(super) const FLAG_EXCHANGE_FENCES: u8 = 1 << 1;
pub(super) const FLAGS: u8 = FLAG_STRICT_ACK | FLAG_EXCHANGE_FENCES;

/// In the first byte of an event: its kind.
pub(super) const KIND_MASK: u8 = 0x0f;
/// The thread's number follows; without it, the thread is that of the event before.
pub(super) const HAS_THREAD: u8 = 1 << 4;
/// The location's number follows; without it, the location is that of the event before.
pub(super) const HAS_LOCATION: u8 = 1 << 5;

/// Kinds of events.
pub(super) const LOAD: u8 = 1;
pub(super) const STORE: u8 = 2;
pub(super) const STORE_NT: u8 = 3;
pub(super) const EXCHANGE: u8 = 4;
pub(super) const FLUSH: u8 = 5;
pub(super) const FLUSH_ORDERED: u8 = 6;
pub(super) const FENCE: u8 = 7;
pub(super) const FULL_FENCE: u8 = 8;
pub(super) const ACK: u8 = 9;
pub(super) const STORE_U128: u8 = 10;
pub(super) const KILL: u8 = 11;

const _: () = assert!(VERSION_OFFSET == MAGIC.len() && HEADER_BYTES == REGION_OFFSET + 8);

/// The contents of a file.
#[derive(Clone)]
pub(super) struct Contents {
    pub(super) rules: Rules,
    pub(super) runs: Runs,
    pub(super) message: String,
}

#[derive(Clone)]
pub(super) enum Runs {
    /// A run, and no crash.
    Run { start: Image, trace: Box<Trace> },
    /// At least one.
    Crashes(Vec<CrashRecord>),
}

impl Contents {
    pub(super) fn start(&self) -> &Image {
        match &self.runs {
            Runs::Run { start, .. } => start,
            Runs::Crashes(crashes) => crashes[0].start(),
        }
    }

    pub(super) fn trace(&self) -> &Trace {
        match &self.runs {
            Runs::Run { trace, .. } => trace,
            Runs::Crashes(crashes) => crashes[0].trace(),
        }
    }

    pub(super) fn crashes(&self) -> &[CrashRecord] {
        match &self.runs {
            Runs::Run { .. } => &[],
            Runs::Crashes(crashes) => crashes,
        }
    }

    /// The first version that has all events of the contents.
    pub(super) fn version(&self) -> u16 {
        let traces = core::iter::once(self.trace()).chain(self.crashes().iter().map(CrashRecord::trace));
        let versions = traces.flat_map(Trace::events).map(|event| match event.kind {
            EventKind::Kill => KILL_VERSION,
            EventKind::StoreU128 { .. } => STORE_U128_VERSION,
            _ => OLDEST_VERSION,
        });
        versions.max().unwrap_or(OLDEST_VERSION)
    }
}

pub(super) const fn kind_number(kind: &EventKind) -> u8 {
    match kind {
        EventKind::Load { .. } => LOAD,
        EventKind::Store { .. } => STORE,
        EventKind::StoreNt { .. } => STORE_NT,
        EventKind::Exchange { .. } => EXCHANGE,
        EventKind::Flush { .. } => FLUSH,
        EventKind::FlushOrdered { .. } => FLUSH_ORDERED,
        EventKind::Fence => FENCE,
        EventKind::FullFence => FULL_FENCE,
        EventKind::Ack => ACK,
        EventKind::StoreU128 { .. } => STORE_U128,
        EventKind::Kill => KILL,
    }
}

pub(super) const fn model_number(model: Model) -> u8 {
    match model {
        Model::Eadr => 1,
        Model::Px86Line => 2,
        Model::Px86Loc => 3,
        Model::Chunk8 => 4,
        Model::Page => 5,
    }
}

pub(super) fn model(number: u8) -> Option<Model> {
    Model::ALL.into_iter().find(|&model| model_number(model) == number)
}
