//! Reads the contents of a trace file from its bytes. Everything is validated, and allocations are bounded by the input.

use super::error::{TraceError, invalid};
use super::format::{
    self, ACK, CRC_BYTES, Contents, EXCHANGE, FENCE, FLAG_EXCHANGE_FENCES, FLAG_STRICT_ACK, FLAGS,
    FLAGS_OFFSET, FLUSH, FLUSH_ORDERED, FULL_FENCE, HAS_LOCATION, HAS_THREAD, HEADER_BYTES, KILL, KIND_MASK,
    LOAD, MAGIC, MODEL_OFFSET, OLDEST_VERSION, REGION_OFFSET, RESERVED_OFFSET, Runs, STORE, STORE_NT,
    STORE_U128, VERSION, VERSION_OFFSET,
};
use super::wire::Cursor;
use crate::image::Image;
use crate::line::{LINE, Lines, PAIR, WORD, index};
use crate::location::LocationId;
use crate::model::{Rules, pieces_of};
use crate::outcome::CrashRecord;
use crate::trace::{Event, EventKind, Trace};
use crate::{SourceLocation, Survivor};
use indexmap::IndexSet;
use std::collections::HashMap;
use std::sync::Arc;

/// Reads a whole file, whose region has at most `region_limit` bytes.
pub(super) fn contents(bytes: &[u8], region_limit: u64) -> Result<Contents, TraceError> {
    let body = checked(bytes)?;
    let rules = rules(body)?;
    let len_bytes = region_bytes(body, region_limit)?;
    let mut reader = Reader::new(body, len_bytes);
    let crashes = reader.cursor.number("the number of crashes")?;
    let mut start = reader.image(&Image::zeroed(len_bytes))?;
    let runs = if crashes == 0 {
        Runs::Run { trace: Box::new(reader.trace()?), start }
    } else {
        let mut records = Vec::new();
        for number in 0..crashes {
            if number > 0 {
                start = reader.image(&start)?;
            }
            let trace = reader.trace()?;
            let (events, kept) = reader.crash(&trace)?;
            records.push(CrashRecord::from_parts(rules, start.clone(), trace, events, kept));
        }
        Runs::Crashes(records)
    };
    let mut contents = Contents { rules, runs, message: String::new() };
    let found = version(body);
    if found != contents.version() {
        let expected = "the first version that has all its events";
        return Err(invalid(VERSION_OFFSET as u64, expected, found.into()));
    }
    contents.message = reader.cursor.text("the message")?.to_owned();
    match reader.cursor.left() {
        0 => Ok(contents),
        left => Err(invalid(reader.cursor.offset(), "the checksum, and the end", left as u64)),
    }
}

/// The bytes that the checksum covers, if it is right and the file is a trace.
fn checked(bytes: &[u8]) -> Result<&[u8], TraceError> {
    let magic = &bytes[..bytes.len().min(MAGIC.len())];
    if magic != MAGIC {
        return Err(TraceError::NotATrace { found: magic.to_vec() });
    }
    let truncated = TraceError::Truncated { offset: bytes.len() as u64, expected: "a header and a checksum" };
    if bytes.len() < HEADER_BYTES + CRC_BYTES {
        return Err(truncated);
    }
    let found = version(bytes);
    if !(OLDEST_VERSION..=VERSION).contains(&found) {
        return Err(TraceError::UnsupportedVersion { found, supported: VERSION });
    }
    let Some((body, crc)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(truncated);
    };
    let (expected, found) = (crc32c::crc32c(body), u32::from_le_bytes(*crc));
    if expected != found {
        return Err(TraceError::Checksum { expected, found });
    }
    Ok(body)
}

fn version(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[VERSION_OFFSET], bytes[VERSION_OFFSET + 1]])
}

fn rules(body: &[u8]) -> Result<Rules, TraceError> {
    let (model, flags) = (body[MODEL_OFFSET], body[FLAGS_OFFSET]);
    let known = format::model(model)
        .ok_or_else(|| invalid(MODEL_OFFSET as u64, "a known model", u64::from(model)))?;
    if flags & !FLAGS != 0 {
        return Err(invalid(FLAGS_OFFSET as u64, "known flags", u64::from(flags)));
    }
    let reserved = body[RESERVED_OFFSET..REGION_OFFSET].iter().position(|&byte| byte != 0);
    if let Some(at) = reserved.map(|at| RESERVED_OFFSET + at) {
        return Err(invalid(at as u64, "zero in a reserved byte", u64::from(body[at])));
    }
    Ok(Rules {
        model: known,
        strict_ack: flags & FLAG_STRICT_ACK != 0,
        exchange_fences: flags & FLAG_EXCHANGE_FENCES != 0,
        ..Rules::default()
    })
}

fn region_bytes(body: &[u8], limit: u64) -> Result<u64, TraceError> {
    let mut field = [0; 8];
    field.copy_from_slice(&body[REGION_OFFSET..HEADER_BYTES]);
    let len_bytes = u64::from_le_bytes(field);
    if len_bytes == 0 || !len_bytes.is_multiple_of(LINE as u64) {
        return Err(invalid(REGION_OFFSET as u64, "a length in whole lines of 64 bytes", len_bytes));
    }
    if len_bytes > limit || usize::try_from(len_bytes).is_err() {
        return Err(TraceError::TooLarge { found: len_bytes, limit });
    }
    Ok(len_bytes)
}

struct Reader<'b> {
    cursor: Cursor<'b>,
    len_bytes: u64,
    /// Numbered by first use.
    locations: IndexSet<SourceLocation>,
    /// Names of source files, numbered by first use.
    names: IndexSet<Arc<str>>,
}

/// The state of decoding a run: the values that the next event may leave out, and its locations by their number in the file.
#[derive(Default)]
struct Before {
    thread: u32,
    location: Option<(u64, LocationId)>,
    locations: HashMap<u64, LocationId>,
    end: u64,
}

impl<'b> Reader<'b> {
    fn new(body: &'b [u8], len_bytes: u64) -> Self {
        let cursor = Cursor::new(body, HEADER_BYTES);
        Self { cursor, len_bytes, locations: IndexSet::new(), names: IndexSet::new() }
    }

    fn image(&mut self, before: &Image) -> Result<Image, TraceError> {
        let line_count = self.len_bytes / LINE as u64;
        let mut changed = Lines::default();
        let mut end = 0;
        for span in 0..self.cursor.number("the number of spans of lines")? {
            let at = self.cursor.offset();
            let gap = self.cursor.number_up_to(line_count - end, "a gap that ends in the region")?;
            if gap == 0 && span > 0 {
                return Err(invalid(at, "a gap, for neighbouring lines are one span", gap));
            }
            let first = end + gap;
            let at = self.cursor.offset();
            let count = self.cursor.number_up_to(line_count - first, "a span that ends in the region")?;
            if count == 0 {
                return Err(invalid(at, "a span of lines", count));
            }
            for number in first..first + count {
                let at = self.cursor.offset();
                let mut line = [0; LINE];
                line.copy_from_slice(self.cursor.bytes(LINE as u64, "a line")?);
                if line == *before.line(number) {
                    return Err(invalid(at, "a line that differs from what was there", number));
                }
                changed.insert(number, line);
            }
            end = first + count;
        }
        Ok(before.with_lines(changed))
    }

    fn trace(&mut self) -> Result<Trace, TraceError> {
        let mut trace = Trace::default();
        let mut before = Before::default();
        for _ in 0..self.cursor.number("the number of events")? {
            self.event(&mut trace, &mut before)?;
        }
        Ok(trace)
    }

    fn event(&mut self, trace: &mut Trace, before: &mut Before) -> Result<(), TraceError> {
        let at = self.cursor.offset();
        let head = self.cursor.byte("an event")?;
        let flags = head & !KIND_MASK;
        if flags & !(HAS_THREAD | HAS_LOCATION) != 0 {
            return Err(invalid(at, "an event", u64::from(head)));
        }
        if head & HAS_THREAD != 0 {
            let thread = self.cursor.number("the thread's number")?;
            let new = u32::try_from(thread).ok().filter(|&thread| thread != before.thread);
            before.thread = new.ok_or_else(|| invalid(at, "another thread of at most 32 bits", thread))?;
        }
        if head & HAS_LOCATION != 0 {
            let number = self.location()?;
            if before.location.is_some_and(|(known, _)| known == number) {
                return Err(invalid(at, "another location than before", number));
            }
            let known = &self.locations[index(number)];
            let id = before.locations.entry(number);
            let id = *id.or_insert_with(|| trace.locations_mut().intern(known.clone()));
            before.location = Some((number, id));
        }
        let (_, location) = before.location.ok_or_else(|| invalid(at, "a location", u64::from(head)))?;
        let kind = self.kind(head & KIND_MASK, at, trace, &mut before.end)?;
        trace.push(Event { kind, thread: before.thread, location });
        Ok(())
    }

    fn kind(&mut self, kind: u8, at: u64, trace: &mut Trace, end: &mut u64) -> Result<EventKind, TraceError> {
        match kind {
            FENCE => return Ok(EventKind::Fence),
            FULL_FENCE => return Ok(EventKind::FullFence),
            ACK => return Ok(EventKind::Ack),
            KILL => return Ok(EventKind::Kill),
            LOAD..=FLUSH_ORDERED | STORE_U128 => {}
            _ => return Err(invalid(at, "a kind of event", u64::from(kind))),
        }
        let offset = self.cursor.step(*end, "an offset")?;
        let len_bytes = self.cursor.number("a length")?;
        *end = offset
            .checked_add(len_bytes)
            .filter(|&end| end <= self.len_bytes)
            .ok_or_else(|| invalid(at, "an event inside the region", offset))?;
        let may_be_empty = matches!(kind, FLUSH | FLUSH_ORDERED);
        if len_bytes == 0 && !may_be_empty {
            return Err(invalid(at, "an access to at least one byte", len_bytes));
        }
        let word = WORD as u64;
        if kind == EXCHANGE && (len_bytes != word || !offset.is_multiple_of(word)) {
            return Err(invalid(at, "an exchange of one aligned word", offset));
        }
        let pair = PAIR as u64;
        if kind == STORE_U128 && (len_bytes != pair || !offset.is_multiple_of(pair)) {
            return Err(invalid(at, "a store of one aligned pair of words", offset));
        }
        Ok(match kind {
            LOAD => EventKind::Load { offset, len_bytes },
            FLUSH => EventKind::Flush { offset, len_bytes },
            FLUSH_ORDERED => EventKind::FlushOrdered { offset, len_bytes },
            _ => {
                let data = trace.keep(self.cursor.bytes(len_bytes, "what was stored")?);
                match kind {
                    STORE => EventKind::Store { offset, data },
                    STORE_U128 => EventKind::StoreU128 { offset, data },
                    STORE_NT => EventKind::StoreNt { offset, data },
                    _ => EventKind::Exchange { offset, data },
                }
            }
        })
    }

    /// The number of a location; a new one is described.
    fn location(&mut self) -> Result<u64, TraceError> {
        let next = self.locations.len() as u64;
        let number = self.cursor.number_up_to(next, "a location's number, or the next new one")?;
        if number == next {
            let at = self.cursor.offset();
            let name = self.name()?;
            let line = self.cursor.number_u32("a line of at most 32 bits")?;
            let column = self.cursor.number_u32("a column of at most 32 bits")?;
            let location = SourceLocation::new(name, line, column);
            if !self.locations.insert(location) {
                return Err(invalid(at, "a location that has no number yet", number));
            }
        }
        Ok(number)
    }

    /// The name of a source file, by its number; a new one is spelled out.
    fn name(&mut self) -> Result<Arc<str>, TraceError> {
        let next = self.names.len() as u64;
        let number = self.cursor.number_up_to(next, "a file's number, or the next new one")?;
        if number == next {
            let at = self.cursor.offset();
            let name: Arc<str> = self.cursor.text("the name of a file")?.into();
            if !self.names.insert(name) {
                return Err(invalid(at, "a name that has no number yet", number));
            }
        }
        Ok(Arc::clone(&self.names[index(number)]))
    }

    /// The number of events before the crash, and the survivors among the pending stores.
    fn crash(&mut self, trace: &Trace) -> Result<(usize, Vec<Survivor>), TraceError> {
        let most = trace.events().len() as u64;
        let events = index(self.cursor.number_up_to(most, "no more events before the crash than there are")?);
        let mut kept: Vec<Survivor> = Vec::new();
        let mut before = Survivor { event: 0, word: 0, first_byte: 0 };
        for number in 0..self.cursor.number("the number of survivors")? {
            let at = self.cursor.offset();
            let step = self.cursor.number_up_to(most, "a survivor's event")?;
            let event = before.event + index(step);
            let word = self.cursor.step(before.word, "a survivor's word")?;
            let stored = trace.events().get(event).filter(|_| event < events);
            let pieces: Vec<u8> =
                stored.map(|event| pieces_of(&event.kind, word).collect()).unwrap_or_default();
            let first_byte = match *pieces {
                [] => return Err(invalid(at, "a word of a store before the crash", word)),
                [only] => only,
                _ => {
                    let at = self.cursor.offset();
                    let first_byte = self.cursor.number("the first byte of a piece")?;
                    let piece = pieces.iter().find(|&&piece| u64::from(piece) == first_byte);
                    *piece.ok_or_else(|| invalid(at, "the first byte of a piece of the store", first_byte))?
                }
            };
            let survivor = Survivor { event, word, first_byte };
            if number > 0 && survivor <= before {
                return Err(invalid(at, "survivors in order", word));
            }
            kept.push(survivor);
            before = survivor;
        }
        Ok((events, kept))
    }
}
