//! A trace, with everything needed to crash it again elsewhere and later.

use super::error::TraceError;
use super::format::{Contents, Runs};
use super::{read, write};
use crate::Image;
use crate::model::{Choices, Chunk, CrashPoint, IllegalCrash, Machine, Model, Points, Rules, Survivor};
use crate::outcome::{CrashRecord, Failure};
use crate::trace::{Event, Trace};
use core::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A recorded run, and crashes of it: the contents of a `.pmc` file.
///
/// It has the contents of the region at the start, every store, flush, fence and acknowledgement with its thread and its place in
/// the source, and the model. A file of a [`Failure`] also has each crash: the first of the operation, each further one
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
pub struct TraceFile(Contents);

impl TraceFile {
    /// A run on a region that began as `start`, under `model`.
    ///
    /// # Panics
    /// When an event leaves the region.
    #[must_use]
    pub fn new(model: Model, start: Image, trace: Trace) -> Self {
        Self::with_rules(Rules { model, ..Rules::default() }, start, trace)
    }

    /// The crashes of a failure, with its message. `None` if the operation failed without a crash.
    #[must_use]
    pub fn from_failure(failure: &Failure) -> Option<Self> {
        let crashes: Vec<CrashRecord> = failure.crashes.iter().map(|crash| crash.record.clone()).collect();
        let rules = *crashes.first()?.rules();
        Some(Self::of(rules, Runs::Crashes(crashes), &failure.message))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Everything in [`TraceError`]; never a panic, whatever the bytes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::from_bytes(&fs::read(path)?)
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        Self::from_bytes_within(bytes, Self::REGION_LIMIT_BYTES)
    }

    /// As [`from_bytes`](Self::from_bytes), for regions of at most `region_limit_bytes`. Other allocations are bounded by the length of the input.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes_within(bytes: &[u8], region_limit_bytes: u64) -> Result<Self, TraceError> {
        read::contents(bytes, region_limit_bytes).map(Self)
    }

    /// The file's bytes. Equal contents have equal bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        write::bytes(&self.0)
    }

    /// Writes a file, replacing an existing one. A file cut short by a crash is detected by its checksum.
    ///
    /// # Errors
    /// Those of the system.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::write(path, self.to_bytes())
    }

    /// The model that the run was recorded or crashed under.
    #[must_use]
    pub const fn model(&self) -> Model {
        self.0.rules.model
    }

    /// The same under another model, without crashes, which may be illegal there.
    #[must_use]
    pub fn under(self, model: Model) -> Self {
        let mut alone = self.without_crashes();
        alone.0.rules.model = model;
        alone
    }

    /// The contents of the region before the run.
    #[must_use]
    pub fn start(&self) -> &Image {
        self.0.start()
    }

    /// The run; with crashes of recoveries, the run of the operation.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        self.0.trace()
    }

    /// The crashes, each inside the recovery from the one before.
    #[must_use]
    pub fn crashes(&self) -> &[CrashRecord] {
        self.0.crashes()
    }

    /// The run that crash number `level` ended, counted from 0, and that crash alone; without crashes, level 0 is the run.
    #[must_use]
    pub fn level(&self, level: usize) -> Option<Self> {
        let runs = match &self.0.runs {
            runs @ Runs::Run { .. } if level == 0 => runs.clone(),
            Runs::Run { .. } => return None,
            Runs::Crashes(crashes) => Runs::Crashes(vec![crashes.get(level)?.clone()]),
        };
        Some(Self::of(self.0.rules, runs, self.message()))
    }

    /// The message of the check for the last crash, or another text by the writer of the file. May be empty.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The same with another message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }

    /// The run with only the events for which `keep` holds, without crashes.
    #[must_use]
    pub fn filtered(&self, keep: impl FnMut(usize, &Event) -> bool) -> Self {
        let trace = Box::new(self.trace().filtered(keep));
        Self::of(self.0.rules, Runs::Run { start: self.start().clone(), trace }, self.message())
    }

    /// The run alone, without crashes.
    #[must_use]
    pub fn without_crashes(&self) -> Self {
        self.filtered(|_, _| true)
    }

    /// The run with one crash: after `events` events, with exactly `kept` of the pending stores surviving.
    ///
    /// # Errors
    /// When no crash keeps exactly that.
    ///
    /// # Panics
    /// When there are fewer events.
    pub fn crashed(&self, events: usize, kept: Vec<Survivor>) -> Result<Self, IllegalCrash> {
        assert!(
            events <= self.trace().events().len(),
            "a crash after {events} events, which is after the end"
        );
        let (start, trace) = (self.start().clone(), self.trace().clone());
        let record = CrashRecord::from_parts(self.0.rules, start, trace, events, kept);
        record.image()?;
        Ok(Self::of(self.0.rules, Runs::Crashes(vec![record]), self.message()))
    }

    /// The points at which a crash of the run can leave something new: right before something becomes durable for certain,
    /// around acknowledgements, and at the end.
    ///
    /// ```
    /// use pm_core::Pmem;
    /// use pm_crashsim::{Image, Model, SimPmem};
    /// let pmem = SimPmem::recording(&Image::zeroed(4096), Model::Px86Line);
    /// pmem.store(0, &[1; 128]);
    /// pmem.persist(0, 128)?;
    /// let points = pmem.to_trace_file().crash_points();
    /// assert_eq!(points.len(), 1, "before the fence");
    /// assert_eq!(points[0].legal, 256 * 256, "any of eight words, in two lines");
    /// # Ok::<(), pm_core::FenceError>(())
    /// ```
    #[must_use]
    pub fn crash_points(&self) -> Vec<CrashPoint> {
        let mut walk = Points::of(Machine::new(*self.rules(), self.start(), self.trace()));
        let mut points = Vec::new();
        while let Some((events, acked)) = walk.next() {
            points.push(CrashPoint::of(walk.machine(), events, acked));
        }
        points
    }

    /// The stores that are pending after that many events: a crash may keep any legal part of them.
    ///
    /// # Panics
    /// When there are fewer events.
    #[must_use]
    pub fn pending(&self, events: usize) -> Vec<Survivor> {
        let all = self.trace().events().len();
        assert!(events <= all, "{events} events of a trace that has {all}");
        let machine = Machine::at(*self.rules(), self.start(), self.trace(), events);
        let chunks = Choices::of(&machine).all();
        chunks.iter().map(Chunk::as_survivor).collect()
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Writes the failure's trace to a file named after the test in Cargo's target directory, replacing that of an earlier failure. Returns the path;
    /// `None` without a trace or such a directory. A write error goes to standard error, because the failure itself is more important.
    pub(crate) fn keep_failure(failure: &Failure) -> Option<PathBuf> {
        let contents = Self::from_failure(failure)?.to_bytes();
        let path = failure.origin.trace_path()?;
        match write_new(&path, &contents) {
            Ok(()) => Some(path),
            Err(error) => {
                eprintln!("pm-crashsim: no trace could be written to {}: {error}", path.display());
                None
            }
        }
    }

    /// The longest region that is read by default: 4 GiB.
    pub const REGION_LIMIT_BYTES: u64 = 4 << 30;

    fn with_rules(rules: Rules, start: Image, trace: Trace) -> Self {
        let end = start.len_bytes();
        for (number, event) in trace.events().iter().enumerate() {
            let inside = event.kind.extent().is_none_or(|(offset, len)| {
                offset.checked_add(len).is_some_and(|event_end| event_end <= end)
            });
            assert!(inside, "event {number} leaves the region, which has {end} bytes");
        }
        Self::of(rules, Runs::Run { start, trace: Box::new(trace) }, "")
    }

    fn of(rules: Rules, runs: Runs, message: &str) -> Self {
        Self(Contents { rules, runs, message: message.to_owned() })
    }
}

impl fmt::Debug for TraceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFile")
            .field("rules", &self.0.rules)
            .field("start", self.start())
            .field("events", &self.trace().events().len())
            .field("crashes", &self.crashes().len())
            .field("message", &self.message())
            .finish()
    }
}

/// Writes a file and creates its directory.
fn write_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_is_written_to_a_new_directory() {
        let directory = std::env::temp_dir().join(format!("pm-crashsim-{}", std::process::id()));
        let path = directory.join("pm-crashsim/name.pmc");
        write_new(&path, b"bytes").expect("a temporary directory can be written to");
        assert_eq!(fs::read(&path).expect("just written"), b"bytes");
        fs::remove_dir_all(directory).expect("just made");
    }
}
