//! The header of a heap, which never changes, and the number of its chunks, which only increases. Each has a copy.

use super::error::HeapError;
use crate::format::{
    COPY_START, ChunkCount, HEADER_BYTES, HeapHeader, KNOWN_INCOMPAT, KNOWN_RO_COMPAT, LANES_START,
    LINE_BYTES, MAGIC, ROOT, VERSION,
};
use crate::growth::store_chunk_count;
use crate::layout::{LANE_ENTRIES, LANES, Layout, is_chunk_length};
use core::ops::Range;
use pm_core::{FenceError, Persist, Pmem, Pool, RootError, Uuid, bytes_of, from_bytes};

/// The header of a heap with this layout in the pool with this identity.
pub(super) fn new(layout: &Layout, pool_uuid: Uuid, features_incompat: u64) -> HeapHeader {
    HeapHeader {
        magic: MAGIC,
        version: VERSION,
        header_bytes: u32::try_from(HEADER_BYTES).expect("4096 fits"),
        features_compat: 0,
        features_ro_compat: 0,
        features_incompat,
        seed: layout.seed,
        heap_start: layout.heap_start,
        lane_count: layout.lane_count,
        lane_entries: layout.lane_entries,
        chunks_start: layout.chunks_start,
        chunk_bytes: layout.chunk_bytes,
        pool_uuid: pool_uuid.into_bytes(),
        reserved: [0; 3996],
        crc: 0,
    }
    .sealed()
}

/// Stores and flushes the header and its copy. The caller's next fence makes both durable.
pub(super) fn store<P: Pmem>(pmem: &P, header: &HeapHeader) {
    offsets(header.heap_start).into_iter().for_each(|at| store_at(pmem, at, header));
}

fn store_at<P: Pmem>(pmem: &P, at: u64, header: &HeapHeader) {
    pmem.store(at, bytes_of(header));
    pmem.flush(at, HEADER_BYTES);
}

/// Sets the root that names the heap with this header. The fence of this call covers all earlier flushes of this thread.
pub(super) fn set_root<P: Pmem>(pool: &Pool<P>, header: &HeapHeader) -> Result<(), HeapError> {
    Ok(pool.logged_roots().restore_missing(ROOT, root_target(header.heap_start))?)
}

/// The target of the root that names the heap at this offset: the header's offset, length and layout.
pub(super) const fn root_target(heap_start: u64) -> (u64, u64, u64) {
    (heap_start, HEADER_BYTES, HeapHeader::LAYOUT)
}

/// A loaded header, of which at least one copy is valid.
pub(super) struct LoadedHeader {
    pub(super) header: HeapHeader,
    /// Whether the header is corrupted, and whether its copy is.
    pub(super) corrupted: [bool; 2],
    /// Whether the root that names the heap is lost to corruption in the pool's root directory.
    pub(super) is_root_lost: bool,
}

impl LoadedHeader {
    /// Loads the header of the heap in a pool, or its copy if the header is corrupted.
    pub(super) fn find<P: Pmem>(pool: &Pool<P>) -> Result<Self, HeapError> {
        let (offset, lost) = match pool.find_root(ROOT) {
            Ok(Some(root)) => {
                root.expect_type(HeapHeader::LAYOUT, size_of::<HeapHeader>() as u64)?;
                (root.offset(), None)
            }
            Ok(None) => return Err(HeapError::NotAHeap),
            // A corrupted slot may have held the root. A heap starts at the data area's start; its header holds that offset and the pool's identity.
            Err(error @ RootError::Corrupted { .. }) => (pool.data().start, Some(error)),
            Err(error) => return Err(error.into()),
        };
        let copies = offsets(offset).map(|at| load(pool, offset, at));
        let is_root_lost = lost.is_some();
        let corrupted = lost.map_or(HeapError::HeaderCorrupted { offset }, HeapError::Root);
        // If neither copy has valid fields, one with a valid checksum is used to report the invalid field.
        let valid = copies.into_iter().flatten().find(|copy| check(copy, pool).is_ok());
        let header = valid.or(copies[0]).or(copies[1]).ok_or(corrupted)?;
        check(&header, pool)?;
        Ok(Self { header, corrupted: copies.map(|copy| copy != Some(header)), is_root_lost })
    }

    /// Restores a corrupted copy from the valid one, which is not stored to, so a crash loses nothing. Then sets the root again if it is lost.
    ///
    /// # Durability
    /// One fence before the corrupted copy is stored, and one more if the root is set. The caller's next fence makes the restored copy durable.
    pub(super) fn restore<P: Pmem>(&self, pool: &Pool<P>) -> Result<(), HeapError> {
        let pmem = pool.pmem();
        for at in offsets(self.header.heap_start) {
            pmem.flush(at, HEADER_BYTES);
        }
        pmem.fence()?;
        for (at, corrupted) in offsets(self.header.heap_start).into_iter().zip(self.corrupted) {
            if corrupted {
                store_at(pmem, at, &self.header);
            }
        }
        if self.is_root_lost { set_root(pool, &self.header) } else { Ok(()) }
    }
}

/// The offsets of the header and of its copy.
const fn offsets(heap_start: u64) -> [u64; 2] {
    [heap_start, heap_start.saturating_add(COPY_START)]
}

/// Loads the copy at `at` of the header of the heap at `offset`. `None` if it is corrupted.
fn load<P: Pmem>(pool: &Pool<P>, offset: u64, at: u64) -> Option<HeapHeader> {
    let pmem = pool.pmem();
    if at.checked_add(HEADER_BYTES).is_none_or(|end| end > pmem.len_bytes()) {
        return None;
    }
    let header: HeapHeader = from_bytes(|bytes| pmem.load(at, bytes));
    let is_intact = header.magic == MAGIC && header.crc == header.expected_crc();
    let is_of_this_heap = header.heap_start == offset && header.pool_uuid == pool.uuid().into_bytes();
    (is_intact && is_of_this_heap).then_some(header)
}

/// Checks that this program can open a heap with this header, and that all fields that later computations use are valid.
fn check<P: Pmem>(header: &HeapHeader, pool: &Pool<P>) -> Result<(), HeapError> {
    if header.version > VERSION {
        return Err(HeapError::FutureVersion { found: header.version, supported: VERSION });
    }
    if (1..VERSION).contains(&header.version) {
        return Err(HeapError::OldVersion { found: header.version, supported: VERSION });
    }
    let unknown = header.features_incompat & !KNOWN_INCOMPAT | header.features_ro_compat & !KNOWN_RO_COMPAT;
    if unknown != 0 {
        return Err(HeapError::UnknownFeatures { unknown });
    }
    let data = pool.data();
    let layout = Layout::of(header);
    let fields = [
        ("version", u64::from(header.version), header.version == VERSION),
        ("header_bytes", u64::from(header.header_bytes), u64::from(header.header_bytes) == HEADER_BYTES),
        ("heap_start", header.heap_start, is_heap_start(header.heap_start, &data)),
        ("lane_count", u64::from(header.lane_count), LANES.contains(&header.lane_count)),
        ("lane_entries", u64::from(header.lane_entries), LANE_ENTRIES.contains(&header.lane_entries)),
        ("chunk_bytes", header.chunk_bytes, is_chunk_length(header.chunk_bytes)),
        ("chunks_start", header.chunks_start, header.chunks_start.is_multiple_of(HEADER_BYTES)),
    ];
    let areas = || {
        // Called only after the fields above have been found valid.
        let chunks_end = header.chunks_start.checked_add(header.chunk_bytes);
        let fits = layout.lanes_end() <= header.chunks_start && chunks_end.is_some_and(|end| end <= data.end);
        (!fits).then_some(("chunks_start", header.chunks_start))
    };
    let wrong = fields.into_iter().find(|(.., is_right)| !is_right);
    match wrong.map(|(field, found, _)| (field, found)).or_else(areas) {
        None => Ok(()),
        Some((field, found)) => Err(HeapError::HeaderField { offset: header.heap_start, field, found }),
    }
}

/// Whether a heap can start at `offset`: it is aligned to lines, and header, state words and copy fit into the data area.
fn is_heap_start(offset: u64, data: &Range<u64>) -> bool {
    let end = offset.checked_add(LANES_START);
    offset.is_multiple_of(LINE_BYTES) && data.start <= offset && end.is_some_and(|end| end <= data.end)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedChunkCount {
    pub(super) count: u64,
    /// The number of corrupted copies.
    pub(super) corrupted: u32,
}

impl LoadedChunkCount {
    /// Loads the number. If both copies are valid and differ, as after a crash while the heap grew, the higher one is right: chunks are durable
    /// before either copy is stored, and their number never decreases. With the lower one, chunks in use could be formatted again.
    pub(super) fn load<P: Pmem>(pmem: &P, layout: &Layout) -> Result<Self, HeapError> {
        let offsets = layout.chunk_count_offsets();
        let copies = offsets.map(|offset| chunk_count_at(pmem, layout, offset));
        let count = copies.into_iter().flatten().max();
        let corrupted = copies.iter().map(|copy| u32::from(copy.is_none())).sum();
        count
            .map(|count| Self { count, corrupted })
            .ok_or(HeapError::ChunkCountCorrupted { offset: offsets[0] })
    }

    /// Makes both copies equal and durable. A killed process may have left them visible but not durable.
    ///
    /// # Durability
    /// One fence. After a crash each copy is as it was, or has the right number.
    ///
    /// # Errors
    /// When the fence fails.
    pub(super) fn restore<P: Pmem>(&self, pmem: &P, layout: &Layout) -> Result<(), FenceError> {
        let is_right = |offset: u64| chunk_count_at(pmem, layout, offset) == Some(self.count);
        if layout.chunk_count_offsets().into_iter().all(is_right) {
            for offset in layout.chunk_count_offsets() {
                pmem.flush(offset, size_of::<ChunkCount>() as u64);
            }
        } else {
            store_chunk_count(pmem, layout, self.count);
        }
        pmem.fence()
    }
}

/// The number in the copy at `offset`. `None` if it is corrupted.
fn chunk_count_at<P: Pmem>(pmem: &P, layout: &Layout, offset: u64) -> Option<u64> {
    let words = [pmem.load_u64(offset), pmem.load_u64(offset + 8)];
    ChunkCount::from_words(words, layout.seed, offset).map(|copy| copy.count)
}
