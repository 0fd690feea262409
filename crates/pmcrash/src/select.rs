//! The selection of events.

use clap::{Args, ValueEnum};
use pm_crashsim::{Event, EventKind};
use std::str::FromStr;

const LINE_BYTES: u64 = 64;

/// A selection of events; all by default.
#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// Only events that touch these lines of 64 bytes, by number. Fences and acknowledgements stay.
    #[arg(long, value_name = "RANGE")]
    pub(crate) lines: Option<Span>,
    /// Only events of this thread; may be given more than once.
    #[arg(long, value_name = "N")]
    pub(crate) thread: Vec<u32>,
    /// Only events of these kinds.
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<Kind>,
    /// Only events with these numbers.
    #[arg(long, value_name = "RANGE")]
    pub(crate) events: Option<Span>,
}

/// Numbers from one up to, but not including, another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    from: u64,
    to: u64,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Kind {
    Load,
    Store,
    StoreU128,
    StoreNt,
    Exchange,
    Flush,
    Clflush,
    Fence,
    Mfence,
    #[value(name = "ack", alias = "acknowledgement")]
    Ack,
}

impl Selection {
    /// Whether the event with that number is selected.
    pub(crate) fn has(&self, number: usize, event: &Event) -> bool {
        let kind = || Kind::of(&event.kind).is_some_and(|kind| self.kind.contains(&kind));
        self.events.is_none_or(|span| span.has(number as u64))
            && (self.thread.is_empty() || self.thread.contains(&event.thread))
            && (self.kind.is_empty() || kind())
            && self.lines.is_none_or(|lines| touches(event, lines))
    }
}

impl Kind {
    /// The names of kinds as the library has them.
    fn of(event: &EventKind) -> Option<Self> {
        let name = event.name();
        Self::value_variants()
            .iter()
            .copied()
            .find(|kind| kind.to_possible_value().is_some_and(|value| value.matches(name, false)))
    }
}

fn touches(event: &Event, lines: Span) -> bool {
    match event.kind.extent() {
        Some((offset, len_bytes)) => {
            let last = offset + len_bytes.saturating_sub(1);
            offset / LINE_BYTES < lines.to && last / LINE_BYTES >= lines.from
        }
        None => true,
    }
}

impl Span {
    const fn has(self, number: u64) -> bool {
        self.from <= number && number < self.to
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((from, to)) = text.split_once("..") else {
            let from = number(text)?;
            return Ok(Self { from, to: from.saturating_add(1) });
        };
        let from = if from.is_empty() { 0 } else { number(from)? };
        let to = if to.is_empty() { u64::MAX } else { number(to)? };
        Ok(Self { from, to })
    }
}

/// A number, decimal or hexadecimal.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{text:?} is not a number: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_end_before_their_end() {
        let span = |text: &str| text.parse::<Span>();
        assert_eq!(span("3..0x10"), Ok(Span { from: 3, to: 16 }));
        assert_eq!(span("..5"), Ok(Span { from: 0, to: 5 }));
        assert_eq!(span("7"), Ok(Span { from: 7, to: 8 }));
        assert!(span("3..").is_ok_and(|span| span.has(3) && !span.has(2) && span.has(u64::MAX - 1)));
        for text in ["", "a", "1..b", "-1", "1..2..3"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
