//! What a stray write did to the headers of blocks.

use core::ops::Range;

/// A header that does not say what it should. What it belongs to is not used any more, and what follows it in memory is
/// found another way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Damage {
    /// Where the header lies in the region.
    pub header_offset: u64,
    /// The bytes of the region that are nobody's now: those of the block, or of what may have been more than one. Empty
    /// if the header is the one that ends a chunk.
    pub extent: Range<u64>,
    /// The word that was found instead of a header.
    pub found: u64,
    /// How the extent is known.
    pub kind: DamageKind,
}

/// How it is known which bytes a damaged header belonged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageKind {
    /// The heap was open: it knew the block.
    Known,
    /// It is not known. The extent ends where a chain of headers goes on, three in a row or up to the end of the chunk; that may be
    /// inside of the block, where headers of former blocks survived. Nothing that is free in the rest of the chunk is
    /// handed out before a repair.
    Resynchronized,
    /// The header is the one that ends a chunk. Nothing is lost with it.
    End,
}
