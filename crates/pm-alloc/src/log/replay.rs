//! Replaying what was committed, and rolling back what was not.

use super::entry::Record;
use super::home;
use super::recover::Recovery;
use super::rings::{GroupFound, LaneFound, lowest_live};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, LINE_BYTES};
use crate::layout::Layout;
use pm_core::line::{line_start, piece_bytes};
use pm_core::{FenceError, Pmem};
use std::collections::BTreeMap;

/// Stores in place what the live groups say, and takes back what no group committed, durably.
///
/// Of several groups that store to a byte only the last one is stored. What groups have stored never goes back to an older value,
/// not even until the fence: the next recovery may replay less, as an entry that is corrupted by then no longer counts, and
/// it finds in place what counts without it.
///
/// # Durability
/// As many fences as [`InnerHeaders::store`] needs, and one at the end; none if there is nothing to do. The entries must be durable.
pub(super) fn replay<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lanes: &[LaneFound],
    recovery: &mut Recovery,
) -> Result<(), FenceError> {
    let lowest = lowest_live(lanes);
    let groups = lanes.iter().flat_map(|lane| &lane.groups);
    let mut groups: Vec<_> =
        groups.filter(|group| lowest.is_some_and(|lowest| group.stamp >= lowest)).collect();
    groups.sort_by_key(|group| group.stamp);
    // The latest group first: a byte that is in the set already has its last value.
    let mut later = Stored::default();
    let mut inner = InnerHeaders::default();
    for group in groups.iter().rev() {
        inner.add(layout, group, &later);
        group.records.iter().rev().for_each(|record| later.add(record, |_, _| ()));
    }
    inner.store(pmem)?;
    let mut stored = Stored::default();
    for record in groups.iter().rev().flat_map(|group| group.records.iter().rev()) {
        stored.add(record, |offset, bytes| home::store(pmem, offset, bytes));
    }
    stored.lines.keys().for_each(|&line| pmem.flush(line, LINE_BYTES));
    recovery.stored_again = groups.len() as u64;
    roll_back(pmem, lanes, recovery);
    if recovery.stored_again + recovery.rolled_back > 0 { pmem.fence() } else { Ok(()) }
}

/// Bytes in place that records store to.
#[derive(Default)]
struct Stored {
    /// A bit for each byte of a line, by the line's offset.
    lines: BTreeMap<u64, u64>,
}

impl Stored {
    /// Adds the bytes of a record, and runs `each` with the offset and the contents of those that were not there.
    fn add(&mut self, record: &Record, mut each: impl FnMut(u64, &[u8])) {
        record.for_each_home(|offset, bytes| {
            let (mut offset, mut rest) = (offset, bytes);
            while !rest.is_empty() {
                #[expect(clippy::cast_possible_truncation, reason = "at most a line")]
                let (piece, behind) = rest.split_at(piece_bytes(offset, rest.len() as u64) as usize);
                self.add_piece(offset, piece, &mut each);
                (offset, rest) = (offset + piece.len() as u64, behind);
            }
        });
    }

    /// The same with bytes of one line.
    fn add_piece(&mut self, offset: u64, piece: &[u8], each: &mut impl FnMut(u64, &[u8])) {
        let (line, first) = place_in_line(offset);
        let there = self.lines.entry(line).or_default();
        let all = bits(first, piece.len());
        let mut new = all & !*there;
        *there |= all;
        while new != 0 {
            let start = new.trailing_zeros() as usize;
            let count = (new >> start).trailing_ones() as usize;
            each(line + start as u64, &piece[start - first..start - first + count]);
            new &= !bits(start, count);
        }
    }

    /// Whether the word at `offset` is there, or a part of it.
    fn has_word(&self, offset: u64) -> bool {
        let (line, first) = place_in_line(offset);
        self.lines.get(&line).is_some_and(|there| there & bits(first, 8) != 0)
    }
}

/// The line of a byte, and which of its bytes it is.
#[expect(clippy::cast_possible_truncation, reason = "less than a line")]
const fn place_in_line(offset: u64) -> (u64, usize) {
    (line_start(offset), (offset - line_start(offset)) as usize)
}

/// A mask of `count` bits from bit `first` on. `count` is at least 1, and `first + count` at most 64.
const fn bits(first: usize, count: usize) -> u64 {
    (u64::MAX >> (64 - count)) << first
}

/// The headers that other headers of their groups lead to. Each is stored durably before the one that leads to it, as a commit does. After
/// a crash in between, the group's entry may be corrupted, and discarded: a header that is in place must not lead to what a
/// former block left.
#[derive(Default)]
struct InnerHeaders {
    /// Offset and word, indexed by the number of headers that follow.
    by_following: Vec<Vec<(u64, u64)>>,
}

impl InnerHeaders {
    /// Adds the inner headers of a group, except those that a later group overwrites. Such a group began after this one had committed,
    /// so the place already holds a header of this group or a newer value.
    fn add(&mut self, layout: &Layout, group: &GroupFound, later: &Stored) {
        let headers = headers_of(layout, group);
        let mut following = BTreeMap::new();
        for (&offset, &(_, next)) in headers.iter().rev() {
            let Some(&(word, _)) = headers.get(&next).filter(|_| next > offset) else { continue };
            let number: usize = following.get(&next).copied().unwrap_or(0);
            following.insert(offset, number + 1);
            if !later.has_word(next) {
                self.by_following.resize_with(self.by_following.len().max(number + 1), Vec::new);
                self.by_following[number].push((next, word));
            }
        }
    }

    /// # Durability
    /// As many fences as the longest row of headers in a group, each leading to the next, has after its first one.
    fn store<P: Pmem>(&self, pmem: &P) -> Result<(), FenceError> {
        for headers in self.by_following.iter().filter(|headers| !headers.is_empty()) {
            for &(offset, word) in headers {
                pmem.store_u64(offset, word);
                pmem.flush(offset, BLOCK_HEADER_BYTES);
            }
            pmem.fence()?;
        }
        Ok(())
    }
}

/// The headers that a group stores, by offset: the word, and the offset of the header behind the block.
fn headers_of(layout: &Layout, group: &GroupFound) -> BTreeMap<u64, (u64, u64)> {
    let header = |(offset, word)| {
        let is_place = offset % LINE_BYTES == LINE_BYTES - BLOCK_HEADER_BYTES;
        let header = BlockHeader::from_word(word, layout.seed, offset).filter(|_| is_place)?;
        Some((offset, (word, offset + u64::from(header.lines) * LINE_BYTES)))
    };
    group.records.iter().flat_map(Record::pairs).filter_map(header).collect()
}

/// Takes back, last first, what was written behind undo entries and not committed. The order is one over all lanes: a transaction may have
/// begun with what another one, committed lazily, had left.
fn roll_back<P: Pmem>(pmem: &P, lanes: &[LaneFound], recovery: &mut Recovery) {
    let mut open: Vec<_> = lanes.iter().flat_map(LaneFound::open).collect();
    open.sort_by_key(|record| core::cmp::Reverse(record.stamp));
    open.into_iter().for_each(|record| store(pmem, record));
    recovery.rolled_back = lanes.iter().filter(|lane| lane.open().next().is_some()).count() as u64;
}

fn store<P: Pmem>(pmem: &P, record: &Record) {
    record.restore(pmem);
    record.for_each_home(|offset, bytes| pmem.flush(offset, bytes.len() as u64));
}
