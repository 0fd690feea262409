//! Words that are stored where they are, in one piece, without a transaction.

use super::commit::LaneGuard;
use super::error::CommitError;
use super::handle::Log;
use pm_core::{Pmem, bytes_of_slice};

/// Stores one word, durably when this returns: in place, if no live entry aims at its line, and else by a commit.
///
/// # Panics
/// When `offset` is no multiple of 8, or no place for data.
///
/// # Durability
/// One line and one fence; with a commit two lines and one fence. A crash leaves the old word or the new one. Where a live entry
/// aims at the line and all lanes are taken, the [checkpoint LSN is raised](Log::raise_checkpoint) before.
///
/// # Errors
/// As [`commit`](LaneGuard::commit).
pub(crate) fn store_u64<P: Pmem>(log: &Log, pmem: &P, offset: u64, value: u64) -> Result<(), CommitError> {
    assert!(offset.is_multiple_of(8), "a word must be aligned, and offset {offset} is not");
    store(log, pmem, offset, &[value])
}

/// As [`store_u64`], of two words, both or neither.
///
/// # Panics
/// When `offset` is no multiple of 16, or no place for data.
///
/// # Durability
/// As [`store_u64`].
///
/// # Errors
/// As [`store_u64`].
pub(crate) fn store_u64_pair<P: Pmem>(
    log: &Log,
    pmem: &P,
    offset: u64,
    pair: [u64; 2],
) -> Result<(), CommitError> {
    assert!(offset.is_multiple_of(16), "an atomic pair must be aligned, and offset {offset} is not");
    store(log, pmem, offset, &pair)
}

/// Stores one word or two of one line.
#[inline]
fn store<P: Pmem>(log: &Log, pmem: &P, offset: u64, words: &[u64]) -> Result<(), CommitError> {
    let bytes = bytes_of_slice(words);
    let len = bytes.len() as u64;
    log.check_open()?;
    log.check_home(pmem, offset, len);
    let last = log.last_lsn(offset, len);
    if !log.is_reached(last) {
        // Not waiting for a lane: this thread may have the only one.
        if let Some(mut lane) = LaneGuard::try_take(log) {
            return lane.commit_bytes(pmem, offset, bytes).map(drop);
        }
        log.raise_checkpoint(pmem, last)?;
    }
    log.settle(pmem, None)?;
    match *words {
        [word] => pmem.store_u64(offset, word),
        [low, high] => pmem.store_u128(offset, u128::from(high) << 64 | u128::from(low)),
        _ => unreachable!("one word or two"),
    }
    pmem.flush(offset, len);
    // DURABILITY POINT
    log.fence(pmem)
}
