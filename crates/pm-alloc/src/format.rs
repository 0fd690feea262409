//! The format of a heap: its header, the headers of blocks, and the entries of logs. `docs/format/heap.md` describes it in prose.

use core::mem::{offset_of, size_of};
use pm_core::{Persist, bytes_of, crc32c_append, crc32c_words};

/// The name of the pool's root that points to the [`HeapHeader`].
pub const ROOT: &str = "pm-alloc.heap";

/// The first eight bytes of a heap's header.
pub const MAGIC: [u8; 8] = *b"PMHEAP\r\n";

/// The format version. Heaps with other versions are not opened. Version 1 had a different log format, and another encoding of the number of chunks.
pub const VERSION: u32 = 2;

/// The known features that a program may ignore. See also [`KNOWN_RO_COMPAT`] and [`KNOWN_INCOMPAT`]. None exist yet.
pub const KNOWN_COMPAT: u64 = 0;
/// The known features that a program must support to write to the heap.
pub const KNOWN_RO_COMPAT: u64 = 0;
/// The known features that a program must support to open the heap.
pub const KNOWN_INCOMPAT: u64 = FIXED_LENGTH;

/// The feature of a heap that ends before its pool: it has as many chunks as when it was created, and its program uses the space behind them.
pub const FIXED_LENGTH: u64 = 1;

/// The unit of space in a heap: one cache line.
pub const LINE_BYTES: u64 = pm_core::line::LINE_BYTES;

/// The length of the header. The page of state words after it and the copy after that page have the same length. The lanes follow.
pub const HEADER_BYTES: u64 = 4096;

/// The offset of the state words from the start of the header. They lie between the header and its copy, so that one stray write does not hit both.
pub const STATE_START: u64 = HEADER_BYTES;

/// The offset of the header's copy from the start of the header.
pub const COPY_START: u64 = 2 * HEADER_BYTES;

/// The distance from a state word to its copy. A stray write of up to half a page does not hit both.
pub const STATE_COPY_DISTANCE: u64 = HEADER_BYTES / 2;

/// The offset of the first lane, which follows the copy, from the start of the header.
pub const LANES_START: u64 = 3 * HEADER_BYTES;

/// The header of a heap, which never changes. It is at the start of the pool's data area, with a copy two pages later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct HeapHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// [`HEADER_BYTES`].
    pub header_bytes: u32,
    /// Features that any program may ignore.
    pub features_compat: u64,
    /// Features that a program must support to write to the heap.
    pub features_ro_compat: u64,
    /// Features that a program must support to open the heap.
    pub features_incompat: u64,
    /// A random number that all checksums of this heap cover, so that no bytes of another heap are valid in this one.
    pub seed: u64,
    /// The offset of this header in the region.
    pub heap_start: u64,
    /// The number of lanes. Each lane is a log that one thread at a time uses.
    pub lane_count: u32,
    /// The number of entries in the ring of each lane.
    pub lane_entries: u32,
    /// The offset of the first chunk in the region.
    pub chunks_start: u64,
    /// The length of each chunk, a power of two.
    pub chunk_bytes: u64,
    /// The identity of the pool in which the heap was created.
    pub pool_uuid: [u8; 16],
    /// Zero.
    pub reserved: [u8; 3996],
    /// CRC-32C of all preceding bytes.
    pub crc: u32,
}

impl HeapHeader {
    /// The right checksum for these fields.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c::crc32c(&bytes_of(self)[..offset_of!(Self, crc)])
    }

    /// The same header with the right checksum.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.crc = self.expected_crc();
        self
    }
}

/// One entry of a log, which occupies one line of a ring. The last word of the line is stored last, and makes the entry valid.
///
/// A line of a ring is an entry, an [erased](LogEntry::erased) line, or an entry being written, whose last word is an [announced](announce) LSN.
/// Every other line is corrupted. Only an announced LSN has the highest bit set, so the last word alone shows whether an entry is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct LogEntry {
    /// From the lowest bit: 48 bits with the target offset of `data` or, in a commit entry of kind `Words`, the number of entries in the group; 8
    /// bits with the [`EntryKind`] and [`COMMITS`]; and 8 bits with the number of valid bytes of `data`.
    pub target: u64,
    /// The contents of the entry: see [`EntryKind`].
    pub data: [u64; 6],
    /// From the lowest bit: 16 bits with a checksum, 47 bits with the [`Lsn`], and a bit that is set while the entry is being written. See [`seal`]
    /// and [`announce`].
    pub lsn: u64,
}

impl LogEntry {
    /// An erased line at `offset`, which holds no entry. It is not all zeros, so a zeroed line counts as corrupted.
    #[must_use]
    pub fn erased(seed: u64, offset: u64) -> Self {
        Self { target: 0, data: [0; 6], lsn: seal(Lsn::ZERO, seed, offset, &[0; 7]) }
    }
}

/// The bytes of data in one [`LogEntry`].
pub const ENTRY_DATA_BYTES: usize = 48;

/// A flag that is added to the kind of the commit entry of a group.
pub const COMMITS: u8 = 0x80;

/// The kind of a [`LogEntry`]'s data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// Up to three pairs of an offset and the word to store there.
    Words = 1,
    /// Bytes to store at the target.
    Redo = 2,
    /// The bytes that were at the target before the transaction.
    Undo = 3,
}

impl EntryKind {
    /// The kind with this number, which must not include [`COMMITS`].
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Words),
            2 => Some(Self::Redo),
            3 => Some(Self::Undo),
            _ => None,
        }
    }
}

/// The log sequence number of a committed group of log entries, or of undo entries. The high 15 bits are a generation, which increases with each
/// open. The low 32 bits are a number that increases with each commit. Zero is below all other LSNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// Zero, which is below all others.
    pub const ZERO: Self = Self(0);

    /// The highest LSN.
    pub const MAX: Self = Self((1 << 47) - 1);

    /// The LSN of these 47 bits.
    ///
    /// # Panics
    /// When `bits` has more than 47 bits.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        assert!(bits <= Self::MAX.0, "an LSN has 47 bits");
        Self(bits)
    }

    /// The LSN's 47 bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The next LSN. For the highest one, the same LSN.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.0 < Self::MAX.0 { Self(self.0 + 1) } else { self }
    }

    /// The previous LSN. For the lowest one, the same LSN.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The LSN's generation.
    #[must_use]
    pub const fn generation(self) -> u64 {
        self.0 >> 32
    }

    /// The last LSN of this LSN's generation. A log whose floor is such an LSN is closed: no entry is live.
    #[must_use]
    pub const fn end_of_generation(self) -> Self {
        Self(self.0 | u32::MAX as u64)
    }

    /// The first LSN of the next generation, if there is one.
    #[must_use]
    pub const fn next_generation(self) -> Option<Self> {
        let next = (self.generation() + 1) << 32;
        if next > Self::MAX.0 { None } else { Some(Self(next)) }
    }
}

/// A sealed word: the LSN, with a checksum over the seed, the word's offset, the LSN and `contents`. A sealed word is never zero.
#[must_use]
#[inline]
pub fn seal(lsn: Lsn, seed: u64, offset: u64, contents: &[u64]) -> u64 {
    let crc = crc32c_append(crc32c_words(&[seed, offset, lsn.0]), contents);
    // Not zero, because a word of a new medium is zero, and must not be valid.
    let folded = (crc ^ (crc >> 16)) & 0xffff;
    lsn.0 << 16 | u64::from(folded.max(1))
}

/// The LSN in a sealed word. `None` if the checksum is wrong, or the word is [announced](announce).
#[must_use]
#[inline]
pub fn unseal(word: u64, seed: u64, offset: u64, contents: &[u64]) -> Option<Lsn> {
    let lsn = Lsn(word >> 16);
    (lsn <= Lsn::MAX && word == seal(lsn, seed, offset, contents)).then_some(lsn)
}

/// The bit that is set in the last word of a line while an entry is being written to the line.
const ANNOUNCED: u64 = 1 << 63;

/// The announced word: the last word of a line while an entry with this LSN is written to the line. The checksum does not cover the contents, which
/// may be old, new, or mixed. The highest bit is set. In a sealed word it is not, so the line is never read as an entry.
#[must_use]
#[inline]
pub fn announce(lsn: Lsn, seed: u64, offset: u64) -> u64 {
    seal(lsn, seed, offset, &[]) | ANNOUNCED
}

/// The LSN in an announced word. `None` if the checksum is wrong, or the word is [sealed](seal).
#[must_use]
#[inline]
pub fn announced(word: u64, seed: u64, offset: u64) -> Option<Lsn> {
    if word & ANNOUNCED == 0 { None } else { unseal(word ^ ANNOUNCED, seed, offset, &[]) }
}

/// The number of chunks of a heap: a pair of words that is stored atomically, in a line of its own, with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct ChunkCount {
    /// The number of chunks.
    pub count: u64,
    /// CRC-32C over seed, offset and number, each as 8 bytes.
    pub crc: u32,
    /// [`CHUNK_COUNT_MAGIC`].
    pub magic: u32,
}

/// The last four bytes of a [`ChunkCount`].
pub const CHUNK_COUNT_MAGIC: u32 = u32::from_le_bytes(*b"CNKS");

impl ChunkCount {
    /// The pair for `count` chunks, to be stored at `offset` in a heap with this `seed`.
    #[must_use]
    pub fn new(count: u64, seed: u64, offset: u64) -> Self {
        Self { count, crc: crc32c_words(&[seed, offset, count]), magic: CHUNK_COUNT_MAGIC }
    }

    /// The two words on the medium, the first one in the low half.
    #[must_use]
    pub fn to_pair(self) -> u128 {
        let second = u64::from(self.magic) << 32 | u64::from(self.crc);
        u128::from(second) << 64 | u128::from(self.count)
    }

    /// Decodes the two words at `offset`, if they are a valid number of chunks.
    #[must_use]
    pub fn from_words([count, check]: [u64; 2], seed: u64, offset: u64) -> Option<Self> {
        let found = Self::new(count, seed, offset);
        (found.to_pair() >> 64 == u128::from(check)).then_some(found)
    }
}

/// The state of a block, in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockState {
    /// A free block.
    Free = 1,
    /// An allocated block.
    Allocated = 2,
    /// The end of a chunk. It is not a block, and has no lines.
    End = 3,
    /// A block that is never allocated again: a repair stored this header over a corrupted one, and the length of the block was known.
    Lost = 4,
    /// Unreachable lines: a repair stored this header over a corrupted one, and the length of the block was unknown. The chain of headers ends here.
    /// The lines up to the end of this or a later chunk are never allocated again. Headers of allocated blocks in these lines remain valid.
    Unreachable = 5,
}

/// The header of a block: one word, the last of the line before the block's payload.
///
/// A block of `lines` lines has `64 * lines - 8` bytes of payload, because its last word is the header of the next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The block's state.
    pub state: BlockState,
    /// The number of lines up to the next block's payload.
    pub lines: u32,
}

/// The bytes of a block's header.
pub const BLOCK_HEADER_BYTES: u64 = 8;

/// The maximum number of lines of a block: one less than in 32 GiB.
pub const BLOCK_LINES_MAX: u32 = (1 << 29) - 1;

impl BlockHeader {
    /// The header of a block of `lines` lines in this state.
    #[must_use]
    pub const fn new(state: BlockState, lines: u32) -> Self {
        Self { state, lines }
    }

    /// The header's word at `offset` in a heap with this `seed`. The low half has lines and state, and the high half has a CRC-32C over seed, offset
    /// and low half. So a header that is copied to another offset is invalid there.
    #[must_use]
    #[inline]
    pub fn to_word(self, seed: u64, offset: u64) -> u64 {
        let low = self.lines << 3 | self.state as u32;
        u64::from(header_crc(seed, offset, low)) << 32 | u64::from(low)
    }

    /// Decodes the word at `offset`, if it is a valid header.
    #[must_use]
    #[inline]
    pub fn from_word(word: u64, seed: u64, offset: u64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "the low half and the high half")]
        let (low, crc) = (word as u32, (word >> 32) as u32);
        let state = match low & 7 {
            1 => BlockState::Free,
            2 => BlockState::Allocated,
            3 => BlockState::End,
            4 => BlockState::Lost,
            5 => BlockState::Unreachable,
            _ => return None,
        };
        let lines = low >> 3;
        let is_valid = (lines == 0) == matches!(state, BlockState::End);
        (is_valid && crc == header_crc(seed, offset, low)).then_some(Self { state, lines })
    }

    /// Decodes the word at `offset` like [`from_word`](Self::from_word), but also returns `None` if a header cannot be at `offset`: headers are the
    /// last words of lines.
    #[must_use]
    #[inline]
    pub(crate) fn at(word: u64, seed: u64, offset: u64) -> Option<Self> {
        let is_header_offset = offset % LINE_BYTES == LINE_BYTES - BLOCK_HEADER_BYTES;
        if is_header_offset { Self::from_word(word, seed, offset) } else { None }
    }
}

#[inline]
fn header_crc(seed: u64, offset: u64, low: u32) -> u32 {
    crc32c_words(&[seed, offset, u64::from(low)])
}

const _: () = {
    assert!(size_of::<HeapHeader>() as u64 == HEADER_BYTES);
    assert!(offset_of!(HeapHeader, features_compat) == 16);
    assert!(offset_of!(HeapHeader, seed) == 40);
    assert!(offset_of!(HeapHeader, heap_start) == 48);
    assert!(offset_of!(HeapHeader, lane_count) == 56);
    assert!(offset_of!(HeapHeader, chunks_start) == 64);
    assert!(offset_of!(HeapHeader, chunk_bytes) == 72);
    assert!(offset_of!(HeapHeader, pool_uuid) == 80);
    assert!(offset_of!(HeapHeader, crc) == 4092);
    assert!(size_of::<ChunkCount>() == 16);
    assert!(offset_of!(ChunkCount, crc) == 8);
    assert!(offset_of!(ChunkCount, magic) == 12);
    assert!(size_of::<LogEntry>() as u64 == LINE_BYTES);
    assert!(offset_of!(LogEntry, data) == 8);
    assert!(offset_of!(LogEntry, lsn) == 56);
    assert!((Lsn::MAX.0 << 16 | 0xffff) & ANNOUNCED == 0);
};
