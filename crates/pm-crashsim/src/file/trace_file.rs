//! A trace with all that is needed to crash it again, elsewhere and later.

use super::{TraceError, read, write};
use crate::model::{Model, Rules};
use crate::trace::{Event, Trace};
use crate::{CrashRecord, Failure, IllegalCrash, Image, Survivor};
use core::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

/// What was recorded of a run, and of crashes of it: the contents of a `.pmc` file.
///
/// It has what the region held at the start, every store, flush, fence and acknowledgement with its thread and its place in
/// the source, and the model. If it is of a [`Failure`], it has each crash too: the first of the operation, each further one
/// of the recovery from the one before. `docs/format/trace.md` describes the bytes.
///
/// ```
/// use pm_core::Pmem;
/// use pm_crashsim::{Explorer, Image, Model, SimPmem, TraceFile};
/// let pmem = SimPmem::recording(&Image::zeroed(4096), Model::Px86Line);
/// pmem.store_u64(0, 7);
/// pmem.persist(0, 8)?;
/// pmem.ack();
///
/// let bytes = pmem.to_trace_file().to_bytes();
/// let file = TraceFile::from_bytes(&bytes)?;
/// assert_eq!(file.trace().events().len(), 4);
/// Explorer::of(&file).explore_trace(&file, |crash| match (crash.pmem().load_u64(0), crash.acked()) {
///     (7, _) | (0, []) => Ok(()),
///     (found, _) => Err(format!("{found} was found")),
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TraceFile {
    pub(super) rules: Rules,
    pub(super) contents: Contents,
    pub(super) message: String,
}

#[derive(Clone)]
pub(super) enum Contents {
    /// A run, and no crash.
    Run { start: Image, trace: Box<Trace> },
    /// At least one.
    Crashes(Vec<CrashRecord>),
}

impl TraceFile {
    /// The longest region that is read without asking: 4 GiB.
    pub const REGION_LIMIT_BYTES: u64 = 4 << 30;

    /// A run on a region that began as `start`, under `model`.
    ///
    /// # Panics
    /// When an event leaves the region.
    #[must_use]
    pub fn new(model: Model, start: Image, trace: Trace) -> Self {
        Self::with_rules(Rules { model, ..Rules::default() }, start, trace)
    }

    fn with_rules(rules: Rules, start: Image, trace: Trace) -> Self {
        let end = start.len_bytes();
        for (number, event) in trace.events().iter().enumerate() {
            let inside = event.kind.extent().is_none_or(|(offset, len)| {
                offset.checked_add(len).is_some_and(|event_end| event_end <= end)
            });
            assert!(inside, "event {number} leaves the region, which has {end} bytes");
        }
        Self { rules, contents: Contents::Run { start, trace: Box::new(trace) }, message: String::new() }
    }

    /// The crashes that led to a failure, with what the check said. Nothing if the operation failed without a crash.
    #[must_use]
    pub fn from_failure(failure: &Failure) -> Option<Self> {
        let crashes: Vec<CrashRecord> = failure.crashes.iter().map(|crash| crash.record.clone()).collect();
        let rules = *crashes.first()?.rules();
        Some(Self { rules, contents: Contents::Crashes(crashes), message: failure.message.clone() })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Everything in [`TraceError`]; never a panic, whatever the bytes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::read(fs::File::open(path)?)
    }

    /// Reads to the end of `input`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read(mut input: impl Read) -> Result<Self, TraceError> {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes)?;
        Self::from_bytes(&bytes)
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        Self::from_bytes_within(bytes, Self::REGION_LIMIT_BYTES)
    }

    /// As [`from_bytes`](Self::from_bytes), for regions of at most `region_limit_bytes`. What else is allocated is bounded
    /// by the length of the input.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes_within(bytes: &[u8], region_limit_bytes: u64) -> Result<Self, TraceError> {
        read::file(bytes, region_limit_bytes)
    }

    /// The file's bytes. The same contents have the same bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        write::bytes(self)
    }

    /// Writes the file's bytes.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write(&self, mut output: impl Write) -> io::Result<()> {
        output.write_all(&self.to_bytes())
    }

    /// Writes a file, in place of what was there. One that is cut short by a crash is known by its checksum.
    ///
    /// # Errors
    /// Those of the system.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::write(path, self.to_bytes())
    }

    /// The model that the run was recorded or crashed under.
    #[must_use]
    pub const fn model(&self) -> Model {
        self.rules.model
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The same under another model. Crashes are left out: under another model they may be none.
    #[must_use]
    pub fn under(self, model: Model) -> Self {
        let rules = Rules { model, ..self.rules };
        Self { rules, ..self.without_crashes() }
    }

    /// What the region held before the run.
    #[must_use]
    pub fn start(&self) -> &Image {
        match &self.contents {
            Contents::Run { start, .. } => start,
            Contents::Crashes(crashes) => crashes[0].start(),
        }
    }

    /// The run: of the operation, where there are crashes of recoveries too.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        match &self.contents {
            Contents::Run { trace, .. } => trace,
            Contents::Crashes(crashes) => crashes[0].trace(),
        }
    }

    /// The crashes, one inside of the recovery from the other.
    #[must_use]
    pub fn crashes(&self) -> &[CrashRecord] {
        match &self.contents {
            Contents::Run { .. } => &[],
            Contents::Crashes(crashes) => crashes,
        }
    }

    /// The run that crash number `level` ended, counted from 0, and that crash alone; without crashes, level 0 is the run.
    #[must_use]
    pub fn level(&self, level: usize) -> Option<Self> {
        let contents = match &self.contents {
            Contents::Run { .. } if level == 0 => self.contents.clone(),
            Contents::Run { .. } => return None,
            Contents::Crashes(crashes) => Contents::Crashes(vec![crashes.get(level)?.clone()]),
        };
        Some(Self { rules: self.rules, contents, message: self.message.clone() })
    }

    /// What the check said of the last crash, or whatever else whoever wrote the file had to say. May be empty.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same with another message.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// The run with those events only that `keep` says, without crashes.
    #[must_use]
    pub fn filtered(&self, keep: impl FnMut(usize, &Event) -> bool) -> Self {
        let contents =
            Contents::Run { start: self.start().clone(), trace: Box::new(self.trace().filtered(keep)) };
        Self { rules: self.rules, contents, message: self.message.clone() }
    }

    /// The run alone, without crashes.
    #[must_use]
    pub fn without_crashes(&self) -> Self {
        self.filtered(|_, _| true)
    }

    /// The run with one crash: after `events` events, when of the pending stores exactly `kept` had reached the medium.
    ///
    /// # Errors
    /// When no crash keeps exactly that.
    ///
    /// # Panics
    /// When there are not as many events.
    pub fn crashed(&self, events: usize, kept: Vec<Survivor>) -> Result<Self, IllegalCrash> {
        assert!(
            events <= self.trace().events().len(),
            "a crash after {events} events, which is after the end"
        );
        let (start, trace) = (self.start().clone(), self.trace().clone());
        let record = CrashRecord::from_parts(self.rules, start, trace, events, kept);
        record.image()?;
        let contents = Contents::Crashes(vec![record]);
        Ok(Self { rules: self.rules, contents, message: self.message.clone() })
    }
}

impl fmt::Debug for TraceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFile")
            .field("rules", &self.rules)
            .field("start", self.start())
            .field("events", &self.trace().events().len())
            .field("crashes", &self.crashes().len())
            .field("message", &self.message)
            .finish()
    }
}
