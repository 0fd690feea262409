//! Structures stored word by word.

use crate::Pmem;
use core::mem::size_of;

const WORD: usize = size_of::<u64>();

/// Stores `bytes` at `offset`, one word after the other, from the first to the last. Both are multiples of eight.
///
/// The words of one large store reach the medium in any order. Of `n` words a crash then leaves one of `2^n` mixtures; of the
/// same words stored in order, each line holds the first few, and that is one of 9 for each line. The checksum or the word
/// that is written last has to find out either way, but so few are all tried by a test. Atomic words take longer than
/// a copy, which headers and roots can afford: the flush and the fence that follow take most of the time.
pub(super) fn store_words<P: Pmem>(pmem: &P, offset: u64, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<WORD>();
    assert!(rest.is_empty(), "{} bytes are not whole words", bytes.len());
    for (at, word) in (offset..).step_by(WORD).zip(words) {
        pmem.store_u64(at, u64::from_le_bytes(*word));
    }
}
