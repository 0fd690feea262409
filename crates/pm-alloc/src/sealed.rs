//! Sealed words: an LSN with a checksum, and its copy elsewhere.

use crate::format::{Lsn, seal, unseal};
use pm_core::Pmem;

/// A sealed word as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// What the word says, and what its copy says; `None` is corruption.
    pub(crate) copies: [Option<Lsn>; 2],
}

impl Sealed {
    pub(crate) fn read<P: Pmem>(pmem: &P, seed: u64, offsets: [u64; 2]) -> Self {
        let copy = |offset| unseal(pmem.load_u64(offset), seed, offset, &[]);
        Self { copies: offsets.map(copy) }
    }

    /// What the word says, or else its copy.
    pub(crate) const fn first(&self) -> Option<Lsn> {
        let [word, copy] = self.copies;
        if word.is_some() { word } else { copy }
    }

    /// How many of the two are corrupted.
    pub(crate) fn corrupted(&self) -> u32 {
        u32::from(self.copies[0].is_none()) + u32::from(self.copies[1].is_none())
    }
}

/// Writes a word and its copy, and flushes both. A crash before the fence leaves either with the old LSN or the new one.
pub(crate) fn write<P: Pmem>(pmem: &P, seed: u64, offsets: [u64; 2], lsn: Lsn) {
    for offset in offsets {
        pmem.store_u64(offset, seal(lsn, seed, offset, &[]));
        pmem.flush(offset, 8);
    }
}
