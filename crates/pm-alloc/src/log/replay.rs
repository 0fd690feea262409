//! Replaying what was committed, and rolling back what was not.

use super::entry::Record;
use super::home;
use super::recover::Recovery;
use super::rings::{GroupFound, LaneFound, lowest_live};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, LINE_BYTES};
use crate::layout::Layout;
use pm_core::{FenceError, Pmem};
use std::collections::BTreeMap;

/// Stores in place what the live groups say, and takes back what no group committed, durably.
///
/// Of several groups that store to the same bytes only the last one is stored. A value in place never goes back to an older
/// one, not even until the fence: the next recovery may replay less, as an entry that is corrupted by then no longer counts,
/// and it finds in place what counts without it.
///
/// # Durability
/// One fence for the entries, as many as [`store_inner_headers`] needs, and one at the end; none if there is nothing to do.
pub(super) fn replay<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lanes: &[LaneFound],
    recovery: &mut Recovery,
) -> Result<(), FenceError> {
    let lowest = lowest_live(lanes);
    let lanes_of = (0..).zip(lanes);
    let groups = lanes_of.flat_map(|(index, lane)| lane.groups.iter().map(move |group| (index, group)));
    let mut groups: Vec<_> =
        groups.filter(|(_, group)| lowest.is_some_and(|lowest| group.stamp >= lowest)).collect();
    groups.sort_by_key(|(_, group)| group.stamp);
    if !groups.is_empty() {
        // After a kill they may be visible and not durable. Half of what a group stores could be durable then, and the group not.
        for (lane, group) in &groups {
            for number in 0..group.count {
                let entry = (group.first + number) % layout.lane_entries;
                pmem.flush(layout.entry_offset(*lane, entry), LINE_BYTES);
            }
        }
        pmem.fence()?;
    }
    let mut last = LastStores::default();
    groups.iter().flat_map(|(_, group)| &group.records).for_each(|record| last.add(record));
    store_inner_headers(pmem, layout, groups.iter().map(|(_, group)| *group), &last)?;
    last.store(pmem);
    recovery.stored_again = groups.len() as u64;
    roll_back(pmem, lanes, recovery);
    if recovery.stored_again + recovery.rolled_back > 0 { pmem.fence() } else { Ok(()) }
}

/// What records store in place. Where several store to a byte, the one that was added last counts.
#[derive(Default)]
struct LastStores {
    /// By offset, which is a multiple of 8.
    words: BTreeMap<u64, Word>,
}

/// A word in place, or some of its bytes.
#[derive(Default)]
struct Word {
    bytes: [u8; 8],
    is_stored: [bool; 8],
}

impl LastStores {
    fn add(&mut self, record: &Record) {
        record.for_each_home(|offset, bytes| {
            let (mut offset, mut rest) = (offset, bytes);
            while !rest.is_empty() {
                let at = (offset % 8) as usize;
                let (piece, behind) = rest.split_at(rest.len().min(8 - at));
                let word = self.words.entry(offset - offset % 8).or_default();
                word.bytes[at..at + piece.len()].copy_from_slice(piece);
                word.is_stored[at..at + piece.len()].fill(true);
                (offset, rest) = (offset + piece.len() as u64, behind);
            }
        });
    }

    /// Whether the word at `offset` is `value` in the end.
    fn is_word(&self, offset: u64, value: u64) -> bool {
        self.words.get(&offset).is_some_and(|word| u64::from_le_bytes(word.bytes) == value)
    }

    /// Stores and flushes all of them. The fence is the caller's.
    fn store<P: Pmem>(&self, pmem: &P) {
        for (&offset, word) in &self.words {
            let mut at = 0;
            for run in word.is_stored.chunk_by(bool::eq) {
                if run[0] {
                    home::store(pmem, offset + at as u64, &word.bytes[at..at + run.len()]);
                }
                at += run.len();
            }
        }
        home::for_each_line(self.words.keys().map(|&offset| (offset, 8)), |line| {
            pmem.flush(line, LINE_BYTES)
        });
    }
}

/// Stores the headers that other headers of their groups lead to, each durably before the one that leads to it, as a
/// commit does. After a crash in between, the group's entry may be corrupted, and discarded: a header that is in place
/// must not lead to what a former block left. A header that a later group stores over is left out: that group began when
/// this one was durable, so what the others lead to is in place.
///
/// # Durability
/// As many fences as the longest row of headers in a group, each leading to the next, has after its first one.
fn store_inner_headers<'g, P: Pmem>(
    pmem: &P,
    layout: &Layout,
    groups: impl Iterator<Item = &'g GroupFound>,
    last: &LastStores,
) -> Result<(), FenceError> {
    // Indexed by the number of headers that follow.
    let mut inner: Vec<Vec<(u64, u64)>> = Vec::new();
    for group in groups {
        let headers = headers_of(layout, group);
        let mut following = BTreeMap::new();
        for (&offset, &(_, next)) in headers.iter().rev() {
            let Some(&(word, _)) = headers.get(&next).filter(|_| next > offset) else { continue };
            let number: usize = following.get(&next).copied().unwrap_or(0);
            following.insert(offset, number + 1);
            inner.resize_with(inner.len().max(number + 1), Vec::new);
            if last.is_word(next, word) {
                inner[number].push((next, word));
            }
        }
    }
    for headers in inner {
        for (offset, word) in headers {
            pmem.store_u64(offset, word);
            pmem.flush(offset, BLOCK_HEADER_BYTES);
        }
        pmem.fence()?;
    }
    Ok(())
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
