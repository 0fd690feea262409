//! Storing in place: where bytes of a transaction belong.

use crate::layout::Layout;
use pm_core::Pmem;
use pm_core::line::line_start;

/// Stores `bytes` at `offset`, whole words in one piece each, so that others who load such a word see the old or the new one.
#[inline]
pub(super) fn store<P: Pmem>(pmem: &P, offset: u64, bytes: &[u8]) {
    match bytes.try_into() {
        Ok(word) if offset.is_multiple_of(8) => pmem.store_u64(offset, u64::from_le_bytes(word)),
        _ => store_pieces(pmem, offset, bytes),
    }
}

fn store_pieces<P: Pmem>(pmem: &P, offset: u64, bytes: &[u8]) {
    #[expect(clippy::cast_possible_truncation, reason = "less than eight")]
    let ragged = (offset.next_multiple_of(8) - offset) as usize;
    let (head, rest) = bytes.split_at(ragged.min(bytes.len()));
    if !head.is_empty() {
        pmem.store(offset, head);
    }
    let (words, tail) = rest.as_chunks::<8>();
    let mut at = offset + head.len() as u64;
    for word in words {
        pmem.store_u64(at, u64::from_le_bytes(*word));
        at += 8;
    }
    if !tail.is_empty() {
        pmem.store(at, tail);
    }
}

/// Runs `each` with every line that holds one of these ranges, as offset and length; lines shared by neighbours once, if the ranges
/// come in order.
#[inline]
pub(super) fn for_each_line(ranges: impl Iterator<Item = (u64, u64)>, mut each: impl FnMut(u64)) {
    let mut last = None;
    for (offset, len) in ranges {
        for line in (line_start(offset)..offset + len).step_by(64) {
            if last.replace(line) != Some(line) {
                each(line);
            }
        }
    }
}

/// Whether transactions may store there: inside the region, and not into the log itself.
#[inline]
pub(super) fn is_home(layout: &Layout, region_bytes: u64, offset: u64, len: u64) -> bool {
    let Some(end) = offset.checked_add(len).filter(|&end| end <= region_bytes) else { return false };
    let is_clear_of = |start: u64, stop: u64| end <= start || stop <= offset;
    layout.floor_offsets().iter().all(|&floor| is_clear_of(floor, floor + 8))
        && is_clear_of(layout.lane_offset(0), layout.lanes_end())
}
