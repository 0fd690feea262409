//! The atoms of durability: parts of stores that a crash keeps or loses whole.

use crate::span::{LINE, WORD, index, pieces};

/// The part of one store that lies in one aligned 8-byte word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// The number of the event that stored it. Chunks of one event are unordered among themselves, but for a pair.
    pub(crate) event: usize,
    /// The number of the word.
    pub(crate) word: u64,
    /// Which bytes of the word are stored: bit `i` for byte `i`. Bytes that became durable by a later store to
    /// the same word are cleared, for nothing can bring the older ones back.
    pub(crate) mask: u8,
    pub(crate) value: [u8; WORD],
    /// Whether it was stored in one piece with the other word of its aligned pair.
    pub(crate) in_pair: bool,
}

impl Chunk {
    /// The chunks of a store of `bytes` at `offset`.
    pub(crate) fn of_store(event: usize, offset: u64, bytes: &[u8]) -> impl Iterator<Item = Self> {
        pieces(offset, bytes.len(), WORD).map(move |piece| {
            let mut value = [0; WORD];
            let mut mask = 0;
            for byte in piece.within.clone() {
                mask |= 1 << byte;
            }
            value[piece.within].copy_from_slice(&bytes[piece.of_range]);
            Self { event, word: piece.unit, mask, value, in_pair: false }
        })
    }

    /// The chunks of a store of an aligned pair of words in one piece.
    pub(crate) fn of_pair(event: usize, offset: u64, bytes: &[u8]) -> impl Iterator<Item = Self> {
        Self::of_store(event, offset, bytes).map(|chunk| Self { in_pair: true, ..chunk })
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

    /// Takes from this chunk what a later one of the same word, now durable, has replaced for good.
    pub(crate) fn yield_to(&mut self, durable: &Self) {
        if self.word == durable.word && self.event < durable.event {
            self.mask &= !durable.mask;
        }
    }
}
