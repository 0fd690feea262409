//! One entry of a log: a line, sealed for its place.

use super::home;
use crate::format::{
    COMMITS, ENTRY_DATA_BYTES, EntryKind, LINE_BYTES, LogEntry, Lsn, announce, announced, seal, unseal,
};
use core::mem::offset_of;
use core::sync::atomic::{Ordering, compiler_fence};
use pm_core::{Pmem, bytes_of};

/// Pairs in one entry.
pub(super) const PAIRS: usize = ENTRY_DATA_BYTES / 16;

const STAMP_AT: u64 = offset_of!(LogEntry, lsn) as u64;
const DATA_AT: u64 = offset_of!(LogEntry, data) as u64;
const OFFSET_BITS: u32 = 48;

/// An entry that stores these bytes at `offset`.
pub(super) fn redo(offset: u64, bytes: &[u8]) -> LogEntry {
    of_bytes(EntryKind::Redo, offset, bytes)
}

/// An entry that says what was at `offset`.
pub(super) fn undo(offset: u64, bytes: &[u8]) -> LogEntry {
    of_bytes(EntryKind::Undo, offset, bytes)
}

fn of_bytes(kind: EntryKind, offset: u64, bytes: &[u8]) -> LogEntry {
    let mut data = [0; 6];
    for (word, bytes) in data.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    LogEntry { target: target(kind, offset, bytes.len()), data, lsn: 0 }
}

/// An entry that stores up to three words.
#[inline]
pub(super) fn words(pairs: &[(u64, u64)]) -> LogEntry {
    let mut data = [0; 6];
    for (slot, &(offset, word)) in data.chunks_mut(2).zip(pairs) {
        slot.copy_from_slice(&[offset, word]);
    }
    LogEntry { target: target(EntryKind::Words, 0, 16 * pairs.len()), data, lsn: 0 }
}

#[inline]
fn target(kind: EntryKind, low: u64, len: usize) -> u64 {
    assert!(low < 1 << OFFSET_BITS, "offset {low} has more than 48 bits");
    low | (kind as u64) << OFFSET_BITS | (len as u64) << 56
}

/// Makes this entry the one that commits its group of `count`.
#[inline]
pub(super) const fn make_commit(entry: &mut LogEntry, count: u64) {
    if (entry.target >> OFFSET_BITS) & 0xff == EntryKind::Words as u64 {
        entry.target |= count;
    }
    entry.target |= (COMMITS as u64) << OFFSET_BITS;
}

/// Writes an entry at `offset`. Flushing its line is the caller's.
///
/// The last word is stored twice: first the LSN [announced](announce), which says that the line is being written, then the LSN
/// sealed over the contents. Until the last store the line is not read as an entry, whatever it held before; and a line of which a
/// crash leaves the first words only is not read as a corrupted one.
#[inline]
pub(super) fn write<P: Pmem>(pmem: &P, seed: u64, offset: u64, lsn: Lsn, entry: &LogEntry) {
    pmem.store_u64(offset + STAMP_AT, announce(lsn, seed, offset));
    // A compiler may drop an atomic store that another one to the same place follows, as no other thread has to see it. Here a crash
    // would: the line would keep its old LSN over new contents. Past this point a signal handler may have seen the store, so
    // it has to be made; the processor keeps the order of stores to one line.
    compiler_fence(Ordering::SeqCst);
    pmem.store_u64(offset, entry.target);
    for (at, &word) in (offset + DATA_AT..).step_by(8).zip(&entry.data) {
        pmem.store_u64(at, word);
    }
    pmem.store_u64(offset + STAMP_AT, seal(lsn, seed, offset, &contents(entry)));
}

/// Makes the line at `offset` one that no entry was written to. Flushing it is the caller's.
pub(super) fn erase<P: Pmem>(pmem: &P, seed: u64, offset: u64) {
    pmem.store(offset, bytes_of(&LogEntry::erased(seed, offset)));
}

/// What a line of a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// No entry was written there.
    Erased,
    /// An entry with this LSN was being written.
    Begun(Lsn),
    /// An entry.
    Whole(Record),
    /// Nothing that the log writes.
    Corrupted,
}

impl Line {
    /// What `entry` is, which was read at `offset`.
    pub(super) fn of(entry: &LogEntry, seed: u64, offset: u64) -> Self {
        if let Some(record) = Record::of(entry, seed, offset) {
            return Self::Whole(record);
        }
        if *entry == LogEntry::erased(seed, offset) {
            return Self::Erased;
        }
        announced(entry.lsn, seed, offset).map_or(Self::Corrupted, Self::Begun)
    }

    /// Whether it is an undo entry.
    pub(super) const fn is_undo(&self) -> bool {
        matches!(self, Self::Whole(record) if matches!(record.kind, EntryKind::Undo))
    }

    /// Whether the line behind it belongs to no group that this one belongs to.
    pub(super) const fn ends_group(&self) -> bool {
        match self {
            Self::Whole(record) => record.commits.is_some() || self.is_undo(),
            Self::Begun(_) => false,
            Self::Erased | Self::Corrupted => true,
        }
    }

    /// The LSN of its entry, if that can be read.
    pub(super) const fn lsn(&self) -> Option<Lsn> {
        match self {
            Self::Erased => Some(Lsn::ZERO),
            Self::Begun(lsn) => Some(*lsn),
            Self::Whole(record) => Some(record.lsn),
            Self::Corrupted => None,
        }
    }
}

#[inline]
fn contents(entry: &LogEntry) -> [u64; 7] {
    let [a, b, c, d, e, f] = entry.data;
    [entry.target, a, b, c, d, e, f]
}

/// The entry at `offset`, whatever it is.
pub(super) fn read<P: Pmem>(pmem: &P, offset: u64) -> LogEntry {
    let word = |number: u64| pmem.load_u64(offset + 8 * number);
    LogEntry { target: word(0), data: [1, 2, 3, 4, 5, 6].map(word), lsn: word(7) }
}

/// An entry that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) lsn: Lsn,
    pub(super) kind: EntryKind,
    /// If it commits a group, how many entries that has.
    pub(super) commits: Option<u64>,
    target: u64,
    data: [u64; 6],
    len: usize,
}

impl Record {
    /// What `entry` says, if it was written for `offset` and is as it was written.
    pub(super) fn of(entry: &LogEntry, seed: u64, offset: u64) -> Option<Self> {
        let lsn = unseal(entry.lsn, seed, offset, &contents(entry))?;
        let target = entry.target & ((1 << OFFSET_BITS) - 1);
        let [.., number, len] = entry.target.to_le_bytes();
        let (kind, len) = (EntryKind::from_number(number & !COMMITS)?, usize::from(len));
        let is_sound = match kind {
            EntryKind::Words => len.is_multiple_of(16),
            EntryKind::Redo => len > 0,
            EntryKind::Undo => len > 0 && number & COMMITS == 0,
        };
        if !is_sound || len > ENTRY_DATA_BYTES {
            return None;
        }
        let count = if kind == EntryKind::Words { target } else { 1 };
        let commits = (number & COMMITS != 0).then_some(count);
        Some(Self { lsn, kind, commits, target, data: entry.data, len })
    }

    /// Runs `each` with the offset and the bytes of everything that this entry stores.
    pub(super) fn for_each_home(&self, mut each: impl FnMut(u64, &[u8])) {
        match self.kind {
            EntryKind::Words => {
                for pair in self.data[..self.len / 8].chunks_exact(2) {
                    each(pair[0], bytes_of(&pair[1]));
                }
            }
            EntryKind::Redo | EntryKind::Undo => each(self.target, &bytes_of(&self.data)[..self.len]),
        }
    }

    /// The pairs of an offset and a word, if the entry stores pairs. All headers of blocks are stored so, and nothing else
    /// that is a header at its place.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        let bytes = if self.kind == EntryKind::Words { self.len } else { 0 };
        self.data[..bytes / 8].as_chunks::<2>().0.iter().map(|&[offset, word]| (offset, word))
    }

    /// Whether everything that it stores may be stored by `is_allowed`.
    pub(super) fn is_allowed(&self, is_allowed: impl Fn(u64, u64) -> bool) -> bool {
        let mut all = true;
        let is_pairs = self.kind == EntryKind::Words;
        self.for_each_home(|offset, bytes| {
            all &= is_allowed(offset, bytes.len() as u64) && (!is_pairs || offset.is_multiple_of(8));
        });
        all
    }

    /// Stores it where it belongs. Flushing is the caller's.
    pub(super) fn restore<P: Pmem>(&self, pmem: &P) {
        self.for_each_home(|offset, bytes| home::store(pmem, offset, bytes));
    }
}

const _: () = assert!(STAMP_AT + 8 == LINE_BYTES);
