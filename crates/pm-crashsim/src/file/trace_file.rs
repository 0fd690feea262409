//! A trace with all that is needed to crash it again, elsewhere and later.

use super::error::TraceError;
use super::format::{Contents, Runs};
use super::{read, write};
use crate::Image;
use crate::model::{Choices, Chunk, CrashPoint, IllegalCrash, Machine, Model, Points, Rules, Survivor};
use crate::outcome::{CrashRecord, Failure};
use crate::trace::{Event, Trace};
use core::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

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

    /// The crashes that led to a failure, with what the check said. Nothing if the operation failed without a crash.
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
        read::contents(bytes, region_limit_bytes).map(Self)
    }

    /// The file's bytes. The same contents have the same bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        write::bytes(&self.0)
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
        self.0.rules.model
    }

    /// The same under another model. Crashes are left out: under another model they may be none.
    #[must_use]
    pub fn under(self, model: Model) -> Self {
        let mut alone = self.without_crashes();
        alone.0.rules.model = model;
        alone
    }

    /// What the region held before the run.
    #[must_use]
    pub fn start(&self) -> &Image {
        self.0.start()
    }

    /// The run: of the operation, where there are crashes of recoveries too.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        self.0.trace()
    }

    /// The crashes, one inside of the recovery from the other.
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

    /// What the check said of the last crash, or another text that the writer of the file put there. May be empty.
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

    /// The run with those events only that `keep` says, without crashes.
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
        let record = CrashRecord::from_parts(self.0.rules, start, trace, events, kept);
        record.image()?;
        Ok(Self::of(self.0.rules, Runs::Crashes(vec![record]), self.message()))
    }

    /// The points at which a crash of the run can leave something new: right before something becomes durable for sure,
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

    /// What is pending after that many events: what a crash then could keep.
    ///
    /// # Panics
    /// When there are not as many events.
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

    /// Writes the failure's trace to a file of the test's name in Cargo's target directory, over that of an earlier failure
    /// of the same test. Returns the path; nothing if there is no trace, or no such directory. If it cannot be written, standard error
    /// has the reason: the failure itself is the news.
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

    /// The longest region that is read without asking: 4 GiB.
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

/// Writes a file into a directory that need not be there.
fn write_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_written_where_no_directory_was() {
        let directory = std::env::temp_dir().join(format!("pm-crashsim-{}", std::process::id()));
        let path = directory.join("pm-crashsim/name.pmc");
        write_new(&path, b"bytes").expect("a temporary directory can be written to");
        assert_eq!(fs::read(&path).expect("just written"), b"bytes");
        fs::remove_dir_all(directory).expect("just made");
    }
}
