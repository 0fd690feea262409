//! Log entries. An entry is encoded into a line of a ring, sealed for the line's offset. Applying a decoded entry stores its data in place.

use crate::format::{
    COMMITS, ENTRY_DATA_BYTES, EntryKind, LINE_BYTES, LogEntry, Lsn, announce, announced, seal, unseal,
};
use crate::layout::Layout;
use core::mem::offset_of;
use core::sync::atomic::{Ordering, compiler_fence};
use pm_core::line::line_start;
use pm_core::{Pmem, bytes_of};

/// The maximum number of pairs in an entry.
pub(super) const PAIRS: usize = ENTRY_DATA_BYTES / 16;

const LSN_AT: u64 = offset_of!(LogEntry, lsn) as u64;
const DATA_AT: u64 = offset_of!(LogEntry, data) as u64;
const OFFSET_BITS: u32 = 48;

/// A redo entry, which stores these bytes at `offset`.
pub(super) fn redo(offset: u64, bytes: &[u8]) -> LogEntry {
    of_bytes(EntryKind::Redo, offset, bytes)
}

/// An undo entry, which holds the old bytes at `offset`.
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

/// A redo entry of up to three words, each with its offset.
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

/// Makes `entry` the commit entry of its group of `count` entries. Only an entry of words can commit a group of more than one entry.
#[inline]
pub(super) const fn make_commit(entry: &mut LogEntry, count: u64) {
    if (entry.target >> OFFSET_BITS) & 0xff == EntryKind::Words as u64 {
        entry.target |= count;
    }
    entry.target |= (COMMITS as u64) << OFFSET_BITS;
}

/// Stores an entry at `offset`. The caller flushes its line.
///
/// The last word is stored twice: first the [announced](announce) LSN, which marks the line as being written, and at the end the LSN sealed over the
/// contents. Before that last store the line is not an entry, whatever it held before. If only some of the stores survive a crash, the line does not
/// count as corrupted.
#[inline]
pub(super) fn write<P: Pmem>(pmem: &P, seed: u64, offset: u64, lsn: Lsn, entry: &LogEntry) {
    pmem.store_u64(offset + LSN_AT, announce(lsn, seed, offset));
    // Without a compiler fence the compiler may drop this store, because a later one overwrites it and no other thread need observe it. But after a
    // crash the line could then have its old LSN and new contents. The processor keeps stores to one line in order.
    compiler_fence(Ordering::SeqCst);
    let [a, b, c, d, e, f] = entry.data;
    let sealed = seal(lsn, seed, offset, &contents(entry));
    pmem.store_words(offset, &[entry.target, a, b, c, d, e, f, sealed]);
}

/// Stores an erased line at `offset`. The caller flushes it.
pub(super) fn erase<P: Pmem>(pmem: &P, seed: u64, offset: u64) {
    pmem.store(offset, bytes_of(&LogEntry::erased(seed, offset)));
}

/// The contents of a line of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// No entry has been written there since the ring was erased.
    Erased,
    /// The store of an entry with this LSN was interrupted: the line holds its announced LSN.
    Announced(Lsn),
    /// A complete entry.
    Complete(Entry),
    /// None of the above.
    Corrupted,
}

impl Line {
    /// Classifies `entry`, which was read at `offset`.
    pub(super) fn of(entry: &LogEntry, seed: u64, offset: u64) -> Self {
        if let Some(entry) = Entry::of(entry, seed, offset) {
            return Self::Complete(entry);
        }
        if *entry == LogEntry::erased(seed, offset) {
            return Self::Erased;
        }
        announced(entry.lsn, seed, offset).map_or(Self::Corrupted, Self::Announced)
    }

    pub(super) const fn is_undo(&self) -> bool {
        matches!(self, Self::Complete(entry) if matches!(entry.kind, EntryKind::Undo))
    }

    /// Whether the entry in the next line must belong to another group.
    pub(super) const fn ends_group(&self) -> bool {
        match self {
            Self::Complete(entry) => entry.group_len.is_some() || self.is_undo(),
            Self::Announced(_) => false,
            Self::Erased | Self::Corrupted => true,
        }
    }

    /// The LSN of the entry: zero for an erased line, `None` for a corrupted one.
    pub(super) const fn lsn(&self) -> Option<Lsn> {
        match self {
            Self::Erased => Some(Lsn::ZERO),
            Self::Announced(lsn) => Some(*lsn),
            Self::Complete(entry) => Some(entry.lsn),
            Self::Corrupted => None,
        }
    }
}

#[inline]
fn contents(entry: &LogEntry) -> [u64; 7] {
    let [a, b, c, d, e, f] = entry.data;
    [entry.target, a, b, c, d, e, f]
}

/// Loads the line at `offset` as an entry, without checking it.
pub(super) fn read<P: Pmem>(pmem: &P, offset: u64) -> LogEntry {
    let word = |number: u64| pmem.load_u64(offset + 8 * number);
    LogEntry { target: word(0), data: [1, 2, 3, 4, 5, 6].map(word), lsn: word(7) }
}

/// A decoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) lsn: Lsn,
    pub(super) kind: EntryKind,
    /// The number of entries in the group, if this is the group's commit entry.
    pub(super) group_len: Option<u64>,
    target: u64,
    data: [u64; 6],
    len: usize,
}

impl Entry {
    /// Decodes `entry` if its checksum is right for `offset` and its fields are valid.
    pub(super) fn of(entry: &LogEntry, seed: u64, offset: u64) -> Option<Self> {
        let lsn = unseal(entry.lsn, seed, offset, &contents(entry))?;
        let target = entry.target & ((1 << OFFSET_BITS) - 1);
        let [.., number, len] = entry.target.to_le_bytes();
        let (kind, len) = (EntryKind::from_number(number & !COMMITS)?, usize::from(len));
        let is_valid = match kind {
            EntryKind::Words => len.is_multiple_of(16),
            EntryKind::Redo => len > 0,
            EntryKind::Undo => len > 0 && number & COMMITS == 0,
        };
        if !is_valid || len > ENTRY_DATA_BYTES {
            return None;
        }
        let count = if kind == EntryKind::Words { target } else { 1 };
        let group_len = (number & COMMITS != 0).then_some(count);
        Some(Self { lsn, kind, group_len, target, data: entry.data, len })
    }

    /// The stores of this entry: offsets and bytes.
    pub(super) fn targets(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let bytes = (self.kind != EntryKind::Words).then(|| (self.target, &bytes_of(&self.data)[..self.len]));
        let count = if self.kind == EntryKind::Words { self.len / 16 } else { 0 };
        let pairs = &self.data.as_chunks::<2>().0[..count];
        pairs.iter().map(|[offset, word]| (*offset, bytes_of(word))).chain(bytes)
    }

    /// The (offset, word) pairs of an entry of kind words; no pairs for other kinds. All block headers are logged as such pairs, and no other pair
    /// is a valid header at its offset.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        let bytes = if self.kind == EntryKind::Words { self.len } else { 0 };
        self.data[..bytes / 8].as_chunks::<2>().0.iter().map(|&[offset, word]| (offset, word))
    }

    /// Whether all pairs are aligned, and transactions [may store](is_target) to all targets.
    pub(super) fn has_valid_targets(&self, layout: &Layout, region_bytes: u64) -> bool {
        let is_aligned = self.pairs().all(|(offset, _)| offset.is_multiple_of(8));
        let is_valid =
            |(offset, bytes): (u64, &[u8])| is_target(layout, region_bytes, offset, bytes.len() as u64);
        is_aligned && self.targets().all(is_valid)
    }

    /// Stores the bytes at their targets. The caller flushes them.
    pub(super) fn apply<P: Pmem>(&self, pmem: &P) {
        self.targets().for_each(|(offset, bytes)| store(pmem, offset, bytes));
    }

    pub(super) fn flush_targets<P: Pmem>(&self, pmem: &P) {
        self.targets().for_each(|(offset, bytes)| pmem.flush(offset, bytes.len() as u64));
    }
}

/// Stores `bytes` at `offset`. Each aligned word is stored atomically: a thread that loads it sees the old or the new value.
#[inline]
pub(super) fn store<P: Pmem>(pmem: &P, offset: u64, bytes: &[u8]) {
    match bytes.try_into() {
        Ok(word) if offset.is_multiple_of(8) => pmem.store_u64(offset, u64::from_le_bytes(word)),
        _ => store_pieces(pmem, offset, bytes),
    }
}

/// The words that [`store_pieces`] stores at once.
const GROUP_WORDS: usize = 8;

fn store_pieces<P: Pmem>(pmem: &P, offset: u64, bytes: &[u8]) {
    #[expect(clippy::cast_possible_truncation, reason = "less than eight")]
    let head_bytes = (offset.next_multiple_of(8) - offset) as usize;
    let (head, rest) = bytes.split_at(head_bytes.min(bytes.len()));
    if !head.is_empty() {
        pmem.store(offset, head);
    }
    let (words, tail) = rest.as_chunks::<8>();
    let mut at = offset + head.len() as u64;
    for group in words.chunks(GROUP_WORDS) {
        let mut values = [0; GROUP_WORDS];
        values.iter_mut().zip(group).for_each(|(value, word)| *value = u64::from_le_bytes(*word));
        pmem.store_words(at, &values[..group.len()]);
        at += 8 * group.len() as u64;
    }
    if !tail.is_empty() {
        pmem.store(at, tail);
    }
}

/// The offset of every line that the ranges (offset, length) touch. If the ranges are sorted, each line is returned once.
#[inline]
pub(super) fn lines(ranges: impl Iterator<Item = (u64, u64)>) -> impl Iterator<Item = u64> {
    let mut last = None;
    let lines = ranges.flat_map(|(offset, len)| {
        let end = offset + len;
        core::iter::successors(Some(line_start(offset)), |line| Some(line + LINE_BYTES))
            .take_while(move |&line| line < end)
    });
    lines.filter(move |&line| last.replace(line) != Some(line))
}

/// Whether transactions may store to these bytes: they are inside the region and outside the log.
#[inline]
pub(super) fn is_target(layout: &Layout, region_bytes: u64, offset: u64, len: u64) -> bool {
    let Some(end) = offset.checked_add(len).filter(|&end| end <= region_bytes) else { return false };
    if offset >= layout.chunks_start {
        return true;
    }
    let is_clear_of = |start: u64, stop: u64| end <= start || stop <= offset;
    layout.floor_offsets().iter().all(|&floor| is_clear_of(floor, floor + 8))
        && is_clear_of(layout.lane_offset(0), layout.lanes_end())
}

const _: () = assert!(DATA_AT == 8 && LSN_AT + 8 == LINE_BYTES);
