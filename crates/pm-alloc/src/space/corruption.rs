//! What a stray write did to the headers of blocks.

use core::ops::Range;

/// A header that does not say what it should. What it belongs to is not used any more, and what follows it in memory is
/// found another way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Corruption {
    /// Where the header lies in the region.
    pub header_offset: u64,
    /// The bytes of the region that are out of reach: those of the block, or all that may have been its, but for the allocated
    /// blocks in there that a [check](crate::Heap::check_with) lists. Empty if the header is the one that ends a chunk.
    pub extent: Range<u64>,
    /// The word that was found instead of a header.
    pub found: u64,
    /// How the extent is known.
    pub kind: CorruptionKind,
}

/// How it is known which bytes a corrupted header belonged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// The heap was open: it knew the block.
    Known,
    /// It is not known: the heap was opened since. The extent is the rest of the chunk, or of several where the block may have been
    /// longer than one. Nothing of it is handed out any more, not after a repair either, for nothing shows where the block
    /// ended. The other blocks in it are not lost: those whose own headers are intact are listed, and can be freed. So may be
    /// some that were freed long ago, where an old header survived inside of the block.
    Resynchronized,
    /// The header is the one that ends a chunk. Nothing is lost with it.
    End,
}
