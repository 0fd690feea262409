//! Logs of Valgrind's pmemcheck.

use super::mapping::{Mappings, joined};
use super::reader::{Records, STOP, Written};
use super::record::Record;
use super::{ImportError, RecordError};
use crate::line::index;
use crate::location::LocationId;
use crate::setters::setters;
use crate::trace::{Event, EventKind, Trace};
use crate::{Image, Model, SourceLocation, TraceFile};
use core::fmt;
use pm_core::line::LINE_BYTES;
use std::io::BufRead;

/// The characters of a record that an error shows.
const SHOWN_CHARS: usize = 80;

/// How to read a log.
#[derive(Clone, Debug, Default)]
pub struct PmemcheckOptions {
    model: Model,
    file: Option<String>,
    region: Option<(u64, u64)>,
    start: Option<Image>,
    ack_at: Option<String>,
    skip_unknown: bool,
    unfinished: bool,
}

/// The result of an import.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The run.
    pub file: TraceFile,
    /// The records of the log.
    pub tally: Tally,
}

/// The number of records of each kind in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Stores to the region.
    pub stores: u64,
    /// Flushes of the region.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
    /// Markers taken for the end of an operation.
    pub acks: u64,
    /// Other markers.
    pub markers: u64,
    /// Stores with bytes outside of the region, which are not in the trace.
    pub stores_outside: u64,
    /// Flushes entirely outside of the region, which are not in the trace.
    pub flushes_outside: u64,
    /// Records of no known kind, which were skipped.
    pub unknown: u64,
}

impl PmemcheckOptions {
    /// The region is the one file that the log registers, filled with zeros, under the default model.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The model to crash the run under.
        model(model: Model) => model;

        /// Skips and counts records of no known kind, instead of failing.
        skip_unknown(skip: bool) => skip_unknown;

        /// Accepts a log without an end. A last record without a delimiter is left out, because it may have been cut.
        unfinished(unfinished: bool) => unfinished;
    }

    /// Chooses the registered file that is the region; stores to others are outside.
    #[must_use]
    pub fn file(mut self, name: impl Into<String>) -> Self {
        self.file = Some(name.into());
        self
    }

    /// The region is at these addresses of the process, whatever was registered.
    #[must_use]
    pub const fn region(mut self, address: u64, len_bytes: u64) -> Self {
        self.region = Some((address, len_bytes));
        self
    }

    /// The contents of the region at the start, which the log does not have. Its length is the region's.
    #[must_use]
    pub fn start(mut self, image: Image) -> Self {
        self.start = Some(image);
        self
    }

    /// Takes this marker, which the program logged with `VALGRIND_EMIT_LOG`, for the end of an operation.
    #[must_use]
    pub fn ack_at(mut self, marker: impl Into<String>) -> Self {
        self.ack_at = Some(marker.into());
        self
    }
}

/// Makes a trace of a log that `valgrind --tool=pmemcheck --log-stores=yes` wrote. With `--log-stores-stacktraces=yes`
/// stores have places in the source.
///
/// The log has no threads, so the trace has one: a fence commits what any thread flushed. It has no instructions
/// either: stores around the cache are stores, a compare-exchange is a store and fences nothing, and `clflush` is a flush
/// with a fence after it (without, where the tool ran with `--expect-fence-after-clflush=yes`). A vector store is in the log
/// as its words, and so in order inside a line; [`Model::Chunk8`] has no such order.
///
/// Valgrind's own messages are skipped, inside records too, and those of the program's children. The stores of a child that continues from a `fork`
/// count as the process's own; a child that runs another program needs a log of its own (`--log-file=run.%p.log`).
///
/// A flush of 64 bytes is taken for one instruction on the line that contains its address.
///
/// # Errors
/// [`ImportError`], with line and record.
///
/// # Source
/// `pmemcheck/pmc_main.c` of the fork of Valgrind by the authors of PMDK, which writes these logs, and PMDK's `pmreorder`, which reads them.
pub fn pmemcheck(log: impl BufRead, options: &PmemcheckOptions) -> Result<Imported, ImportError> {
    let mut import = Import::new(options)?;
    let mut records = Records::of(log, options.ack_at.as_deref())?;
    let mut number = 0;
    loop {
        // No delimiter follows the last record. Unless it is STOP, it may be cut.
        let is_whole = |written: &Written| written.is_ended || written.text == STOP;
        let Some(Written { line, text, .. }) = records.next()?.filter(is_whole) else {
            if options.unfinished {
                break;
            }
            return Err(ImportError::NoStop { line: records.line });
        };
        number += 1;
        let record = match Record::parse(&text) {
            Err(RecordError::Unknown) if options.ack_at.as_ref() == Some(&text) => Record::Marker,
            Err(RecordError::Unknown) if options.skip_unknown => {
                import.tally.unknown += 1;
                continue;
            }
            Err(error) => {
                let text = text.chars().take(SHOWN_CHARS).collect();
                return Err(ImportError::Record { line, record: number, text, error });
            }
            Ok(Record::Stop) => break,
            Ok(record) => record,
        };
        import.add(record, &text)?;
    }
    import.finish()
}

struct Import<'o> {
    options: &'o PmemcheckOptions,
    mappings: Mappings,
    /// The name of the region's file.
    file: Option<String>,
    /// The length of the region, or of the mapped part of the file.
    len_bytes: u64,
    trace: Trace,
    unknown_location: LocationId,
    tally: Tally,
}

impl<'o> Import<'o> {
    fn new(options: &'o PmemcheckOptions) -> Result<Self, ImportError> {
        let mut mappings = Mappings::default();
        let mut len_bytes = options.start.as_ref().map_or(0, Image::len_bytes);
        if let Some((address, mapped)) = options.region {
            let end = address
                .checked_add(mapped)
                .ok_or(ImportError::TooLarge { found: mapped, limit: TraceFile::REGION_LIMIT_BYTES })?;
            check_alignment(address, 0)?;
            mappings.add(address, end - address, 0);
            len_bytes = len_bytes.max(mapped);
        }
        let mut trace = Trace::default();
        let unknown_location = trace.locations_mut().intern(SourceLocation::new("unknown place", 0, 0));
        let file = options.file.clone();
        Ok(Self { options, mappings, file, len_bytes, trace, unknown_location, tally: Tally::default() })
    }

    fn add(&mut self, record: Record, text: &str) -> Result<(), ImportError> {
        match record {
            Record::Store { address, bytes, location } => self.store(address, &bytes, location),
            Record::Flush { address, len_bytes } => self.flush(address, len_bytes),
            Record::Fence => {
                self.tally.fences += 1;
                self.push(EventKind::Fence, self.unknown_location);
            }
            Record::RegisterFile { name, address, len_bytes, offset } => {
                self.register(name, address, len_bytes, offset)?;
            }
            Record::Marker if self.options.ack_at.as_deref() == Some(text) => {
                self.tally.acks += 1;
                let location = self.trace.locations_mut().intern(SourceLocation::new(text, 0, 0));
                self.push(EventKind::Ack, location);
            }
            Record::Marker => self.tally.markers += 1,
            Record::Commit | Record::Stop => {}
        }
        Ok(())
    }

    fn store(&mut self, address: u64, bytes: &[u8], location: Option<SourceLocation>) {
        let len_bytes = bytes.len() as u64;
        let Some(parts) = joined(self.mappings.parts(address, len_bytes).collect(), len_bytes) else {
            self.tally.stores_outside += 1;
            return;
        };
        let location = match location {
            Some(location) => self.trace.locations_mut().intern(location),
            None => self.unknown_location,
        };
        self.tally.stores += 1;
        // Several parts where mappings that are adjacent in memory are not adjacent in the file.
        for (from, offset, len_bytes) in parts {
            let data = self.trace.keep(&bytes[index(from)..index(from + len_bytes)]);
            self.push(EventKind::Store { offset, data }, location);
        }
    }

    fn flush(&mut self, address: u64, len_bytes: u64) {
        let address = if len_bytes == LINE_BYTES { address - address % LINE_BYTES } else { address };
        let parts: Vec<_> = self.mappings.parts(address, len_bytes).collect();
        if parts.is_empty() {
            self.tally.flushes_outside += 1;
            return;
        }
        self.tally.flushes += 1;
        for (_, offset, len_bytes) in parts {
            self.push(EventKind::Flush { offset, len_bytes }, self.unknown_location);
        }
    }

    fn register(&mut self, name: String, address: u64, len: u64, offset: u64) -> Result<(), ImportError> {
        if self.options.region.is_some() {
            return Ok(());
        }
        match &self.file {
            Some(chosen) if *chosen == name => {}
            Some(_) if self.options.file.is_some() => {
                // Another file is mapped there now.
                self.mappings.remove(address, len);
                return Ok(());
            }
            Some(first) => return Err(ImportError::SeveralFiles { first: first.clone(), second: name }),
            None => self.file = Some(name),
        }
        check_alignment(address, offset)?;
        self.mappings.add(address, len, offset);
        self.len_bytes = self.len_bytes.max(offset + len);
        Ok(())
    }

    fn push(&mut self, kind: EventKind, location: LocationId) {
        self.trace.push(Event { kind, thread: 0, location });
    }

    fn finish(self) -> Result<Imported, ImportError> {
        let Self { options, trace, tally, len_bytes, .. } = self;
        if self.mappings.is_empty() {
            return Err(ImportError::NoRegion);
        }
        let limit = options.start.as_ref().map_or(TraceFile::REGION_LIMIT_BYTES, Image::len_bytes);
        if len_bytes > limit {
            return Err(ImportError::TooLarge { found: len_bytes, limit });
        }
        // A file may have any length, a region has whole lines.
        let start = match &options.start {
            Some(image) => image.clone(),
            None if len_bytes == 0 => return Err(ImportError::Empty),
            None => Image::zeroed(len_bytes.next_multiple_of(LINE_BYTES)),
        };
        Ok(Imported { file: TraceFile::new(options.model, start, trace), tally })
    }
}

/// Lines of memory must be lines of the region.
const fn check_alignment(address: u64, offset: u64) -> Result<(), ImportError> {
    match address % LINE_BYTES == offset % LINE_BYTES {
        true => Ok(()),
        false => Err(ImportError::Unaligned { address, offset }),
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stores, flushes, fences, acks, markers, stores_outside, flushes_outside, unknown } = self;
        write!(f, "{stores} stores, {flushes} flushes, {fences} fences, {acks} acknowledgements")?;
        let others = [
            (markers, "markers"),
            (stores_outside, "stores outside of the region"),
            (flushes_outside, "flushes outside of the region"),
            (unknown, "unknown records"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| **count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}
