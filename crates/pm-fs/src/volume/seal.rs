//! Words with their own checksum.

use pm_core::crc32c_words;

/// The bits of a sealed word that are its contents.
pub(crate) const CONTENTS_BITS: u32 = 48;

/// The greatest contents.
pub(crate) const CONTENTS_MAX: u64 = (1 << CONTENTS_BITS) - 1;

/// The inode that a word belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) ino: u64,
    pub(crate) birth: u64,
}

/// The word for these contents at `offset`. It changes atomically, together with its checksum, and is never zero.
pub(crate) fn seal(seed: u64, owner: Owner, offset: u64, contents: u64) -> u64 {
    debug_assert!(contents <= CONTENTS_MAX, "{contents:#x}");
    let crc = crc32c_words(&[seed, owner.ino, owner.birth, offset, contents]);
    let folded = (crc ^ (crc >> 16)) & 0xffff;
    u64::from(folded.max(1)) << CONTENTS_BITS | contents
}

/// The contents of a sealed word. `None` if its checksum is wrong.
pub(crate) fn unseal(seed: u64, owner: Owner, offset: u64, word: u64) -> Option<u64> {
    let contents = word & CONTENTS_MAX;
    (seal(seed, owner, offset, contents) == word).then_some(contents)
}
