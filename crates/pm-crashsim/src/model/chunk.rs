//! The units of durability: parts of stores that a crash keeps or loses whole.

use crate::line::{LINE, WORD, index};
use crate::trace::EventKind;
use pm_core::line::piece_bytes;

/// One piece of a store, inside one aligned 8-byte word: usually the whole word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// The event that stored it. Chunks of one event are unordered among themselves, except for a pair.
    pub(crate) event: usize,
    /// The number of the word.
    pub(crate) word: u64,
    /// The piece's first byte in the word.
    pub(crate) first_byte: u8,
    /// The stored bytes of the word: bit `i` for byte `i`. Bytes that became durable by a later store to
    /// the same word are cleared, because the older ones cannot come back.
    pub(crate) mask: u8,
    pub(crate) value: [u8; WORD],
    /// Whether it was stored in one piece with the other word of its aligned pair.
    pub(crate) in_pair: bool,
    /// The event that it is ordered before: it is durable if any store of that event or a later one is. [`NEVER`] if there is none.
    pub(crate) ordered_at: usize,
}

/// The number of no event.
pub(crate) const NEVER: usize = usize::MAX;

impl Chunk {
    /// The chunks of a store of `bytes` at `offset`.
    pub(crate) fn of_store(event: usize, offset: u64, bytes: &[u8]) -> impl Iterator<Item = Self> {
        let mut done = 0;
        core::iter::from_fn(move || {
            let rest = bytes.get(done..).filter(|rest| !rest.is_empty())?;
            let at = offset + done as u64;
            let len = index(piece_bytes(at, rest.len() as u64));
            let (word, first) = (at / WORD as u64, byte_in_word(at));
            let mut value = [0; WORD];
            value[usize::from(first)..][..len].copy_from_slice(&rest[..len]);
            let mask = (u8::MAX >> (WORD - len)) << first;
            done += len;
            Some(Self { event, word, first_byte: first, mask, value, in_pair: false, ordered_at: NEVER })
        })
    }

    /// The chunks of a store of an aligned pair of words in one piece.
    pub(crate) fn of_pair(event: usize, offset: u64, bytes: &[u8]) -> impl Iterator<Item = Self> {
        Self::of_store(event, offset, bytes).map(|chunk| Self { in_pair: true, ..chunk })
    }

    /// Whether a crash keeps or loses both as one: the same piece, or the words of a pair.
    pub(crate) fn is_one_with(&self, other: &Self) -> bool {
        let is_same = (self.word, self.first_byte) == (other.word, other.first_byte);
        self.event == other.event && (self.in_pair || is_same)
    }

    /// The number of the aligned pair of words that holds the word.
    pub(crate) const fn pair(&self) -> u64 {
        self.word / 2
    }

    /// Whether all bytes of the word are stored.
    pub(crate) const fn is_whole(&self) -> bool {
        self.mask == u8::MAX
    }

    /// The first byte of the word.
    pub(crate) const fn offset(&self) -> u64 {
        self.word * WORD as u64
    }

    /// The number of the line that holds the word.
    pub(crate) const fn line(&self) -> u64 {
        self.offset() / LINE as u64
    }

    /// Stores the chunk into its line.
    pub(crate) fn apply(&self, line: &mut [u8; LINE]) {
        let start = index(self.offset() % LINE as u64);
        if self.is_whole() {
            line[start..start + WORD].copy_from_slice(&self.value);
            return;
        }
        for (byte, &value) in self.value.iter().enumerate() {
            if self.mask & (1 << byte) != 0 {
                line[start + byte] = value;
            }
        }
    }

    /// The chunk's identity.
    pub(crate) const fn as_survivor(&self) -> Survivor {
        Survivor { event: self.event, word: self.word, first_byte: self.first_byte }
    }

    /// Whether it is one of these chunks.
    pub(crate) fn is_among(&self, chunks: &[Self]) -> bool {
        chunks.iter().any(|chunk| chunk.as_survivor() == self.as_survivor())
    }

    /// Clears the bytes that a later chunk of the same word, now durable, has replaced for good.
    pub(crate) fn yield_to(&mut self, durable: &Self) {
        if self.word == durable.word && self.event < durable.event {
            self.mask &= !durable.mask;
        }
    }
}

/// A part of a pending store that survived a crash: what it wrote to one aligned 8-byte word, or one of the
/// [pieces](pm_core::line::piece_bytes) that it wrote there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Survivor {
    /// The number of the store in the trace.
    pub event: usize,
    /// The number of the word: its offset divided by 8.
    pub word: u64,
    /// The first byte of the piece in the word: 0 if the whole word was stored.
    pub first_byte: u8,
}

impl Survivor {
    /// The offset of the piece's first byte.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.word * WORD as u64 + self.first_byte as u64
    }

    /// The number of the line that holds the word.
    pub(crate) const fn line(self) -> u64 {
        self.word / (LINE / WORD) as u64
    }
}

/// The pieces that the event stores to the word with that number, each by its first byte in the word.
pub(crate) fn pieces_of(kind: &EventKind, word: u64) -> impl Iterator<Item = u8> {
    let (start, len_bytes) = kind.extent().filter(|_| kind.is_store()).unwrap_or_default();
    let first = word.saturating_mul(WORD as u64);
    let (mut at, end) = (start.max(first), (start + len_bytes).min(first.saturating_add(WORD as u64)));
    core::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|&left| left > 0)?;
        let piece = byte_in_word(at);
        at += piece_bytes(at, left);
        Some(piece)
    })
}

/// The position of the byte in its word.
const fn byte_in_word(offset: u64) -> u8 {
    offset.to_le_bytes()[0] & 7
}
