//! A trace file's bytes from its contents.

use super::format::{
    Contents, FLAG_EXCHANGE_FENCES, FLAG_STRICT_ACK, HAS_LOCATION, HAS_THREAD, MAGIC, Runs, kind_number,
    model_number,
};
use super::wire::{put_bytes, put_number, put_step};
use crate::image::Image;
use crate::line::LINE;
use crate::model::pieces_of;
use crate::outcome::CrashRecord;
use crate::trace::{Event, Trace};
use crate::{SourceLocation, Survivor};
use std::collections::HashMap;

/// All of the file.
pub(super) fn bytes(contents: &Contents) -> Vec<u8> {
    let Contents { rules, runs, message } = contents;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let flags = flag(rules.strict_ack, FLAG_STRICT_ACK) | flag(rules.exchange_fences, FLAG_EXCHANGE_FENCES);
    let len_bytes = contents.start().len_bytes();
    let mut writer = Writer { out: Vec::new(), locations: HashMap::new(), names: HashMap::new() };
    writer.out.extend_from_slice(&MAGIC);
    writer.out.extend_from_slice(&contents.version().to_le_bytes());
    writer.out.extend_from_slice(&[model_number(rules.model), flags]);
    writer.out.extend_from_slice(&[0; 4]);
    writer.out.extend_from_slice(&len_bytes.to_le_bytes());
    put_number(&mut writer.out, contents.crashes().len() as u64);
    let zeroed = Image::zeroed(len_bytes);
    match runs {
        Runs::Run { start, trace } => {
            writer.image(&zeroed, start);
            writer.trace(trace);
        }
        Runs::Crashes(crashes) => {
            let mut before = &zeroed;
            for crash in crashes {
                writer.image(before, crash.start());
                writer.trace(crash.trace());
                writer.crash(crash);
                before = crash.start();
            }
        }
    }
    put_bytes(&mut writer.out, message.as_bytes());
    let crc = crc32c::crc32c(&writer.out);
    writer.out.extend_from_slice(&crc.to_le_bytes());
    writer.out
}

struct Writer<'f> {
    out: Vec<u8>,
    /// Numbered by first use.
    locations: HashMap<&'f SourceLocation, u64>,
    /// Names of source files, numbered by first use.
    names: HashMap<&'f str, u64>,
}

impl<'f> Writer<'f> {
    /// Spans of neighbouring lines that differ from the image before.
    fn image(&mut self, before: &Image, image: &Image) {
        let numbers = 0..image.len_bytes() / LINE as u64;
        let changed: Vec<u64> = numbers.filter(|&number| image.line(number) != before.line(number)).collect();
        let spans = || changed.chunk_by(|&number, &next| number + 1 == next);
        put_number(&mut self.out, spans().count() as u64);
        let mut end = 0;
        for span in spans() {
            put_number(&mut self.out, span[0] - end);
            put_number(&mut self.out, span.len() as u64);
            span.iter().for_each(|&number| self.out.extend_from_slice(image.line(number)));
            end = span[0] + span.len() as u64;
        }
    }

    fn trace(&mut self, trace: &'f Trace) {
        put_number(&mut self.out, trace.events().len() as u64);
        let mut before: Option<&Event> = None;
        let mut end = 0;
        for event in trace.events() {
            let has_thread = event.thread != before.map_or(0, |before| before.thread);
            let has_location = before.is_none_or(|before| before.location != event.location);
            let mut head = kind_number(&event.kind);
            head |= if has_thread { HAS_THREAD } else { 0 };
            head |= if has_location { HAS_LOCATION } else { 0 };
            self.out.push(head);
            if has_thread {
                put_number(&mut self.out, u64::from(event.thread));
            }
            if has_location {
                self.location(trace.location(event.location));
            }
            if let Some((offset, len_bytes)) = event.kind.extent() {
                put_step(&mut self.out, end, offset);
                put_number(&mut self.out, len_bytes);
                end = offset + len_bytes;
            }
            if let Some(data) = event.kind.data() {
                self.out.extend_from_slice(trace.data(data));
            }
            before = Some(event);
        }
    }

    /// A number, and for a new one its description.
    fn location(&mut self, location: &'f SourceLocation) {
        let next = self.locations.len() as u64;
        let number = *self.locations.entry(location).or_insert(next);
        put_number(&mut self.out, number);
        if number == next {
            let next_name = self.names.len() as u64;
            let name = *self.names.entry(location.file()).or_insert(next_name);
            put_number(&mut self.out, name);
            if name == next_name {
                put_bytes(&mut self.out, location.file().as_bytes());
            }
            put_number(&mut self.out, u64::from(location.line()));
            put_number(&mut self.out, u64::from(location.column()));
        }
    }

    fn crash(&mut self, crash: &CrashRecord) {
        put_number(&mut self.out, crash.events() as u64);
        let mut kept: Vec<Survivor> = crash.kept().to_vec();
        kept.sort_unstable();
        kept.dedup();
        put_number(&mut self.out, kept.len() as u64);
        let mut before = Survivor { event: 0, word: 0, first_byte: 0 };
        for survivor in kept {
            put_number(&mut self.out, (survivor.event - before.event) as u64);
            put_step(&mut self.out, before.word, survivor.word);
            if pieces_of(&crash.trace().events()[survivor.event].kind, survivor.word).nth(1).is_some() {
                put_number(&mut self.out, survivor.first_byte.into());
            }
            before = survivor;
        }
    }
}
