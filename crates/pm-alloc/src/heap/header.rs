//! The header of a heap: written once, twice.

use crate::error::HeapError;
use crate::format::{
    COPY_START, HEADER_BYTES, HeapHeader, KNOWN_INCOMPAT, KNOWN_RO_COMPAT, LANES_START, LINE_BYTES, MAGIC,
    ROOT, VERSION,
};
use crate::layout::{LANE_ENTRIES, LANES, Layout, is_chunk_length};
use core::ops::Range;
use pm_core::{Persist, Pmem, Pool, RootError, Uuid, bytes_of, from_bytes};

/// The header of a heap with this layout in the pool with this identity.
pub(super) fn new(layout: &Layout, pool_uuid: Uuid) -> HeapHeader {
    HeapHeader {
        magic: MAGIC,
        version: VERSION,
        header_bytes: u32::try_from(HEADER_BYTES).expect("4096 fits"),
        features_compat: 0,
        features_ro_compat: 0,
        features_incompat: 0,
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

/// Stores the header and its copy, and flushes both; a fence makes them durable.
pub(super) fn store<P: Pmem>(pmem: &P, header: &HeapHeader) {
    places(header.heap_start).into_iter().for_each(|at| store_at(pmem, at, header));
}

fn store_at<P: Pmem>(pmem: &P, at: u64, header: &HeapHeader) {
    pmem.store(at, bytes_of(header));
    pmem.flush(at, HEADER_BYTES);
}

/// A header of which one copy at least is whole.
pub(super) struct Found {
    pub(super) header: HeapHeader,
    /// Whether the header is corrupted, and whether its copy is.
    pub(super) corrupted: [bool; 2],
    /// Whether the pool's root directory is corrupted, and the root that names the heap with it.
    pub(super) root_is_lost: bool,
}

/// The header of the heap in a pool, or its copy where it is corrupted.
pub(super) fn find<P: Pmem>(pool: &Pool<P>) -> Result<Found, HeapError> {
    let (offset, lost) = match pool.find_root(ROOT) {
        Ok(Some(root)) => {
            root.expect_type(HeapHeader::LAYOUT, size_of::<HeapHeader>() as u64)?;
            (root.offset(), None)
        }
        Ok(None) => return Err(HeapError::NotAHeap),
        // It may have been in what is corrupted. A heap starts where the data do, and its header names the pool and the place.
        Err(error @ RootError::Corrupted { .. }) => (pool.data().start, Some(error)),
        Err(error) => return Err(error.into()),
    };
    let copies = places(offset).map(|at| read(pool, offset, at));
    let root_is_lost = lost.is_some();
    let corrupted = lost.map_or(HeapError::HeaderCorrupted { offset }, HeapError::Root);
    // A copy with fields that cannot be counts only where the other one is corrupted: to say so.
    let sound = copies.into_iter().flatten().find(|copy| check(copy, pool).is_ok());
    let header = sound.or(copies[0]).or(copies[1]).ok_or(corrupted)?;
    check(&header, pool)?;
    Ok(Found { header, corrupted: copies.map(|copy| copy != Some(header)), root_is_lost })
}

/// Stores again what is corrupted; the other copy is not touched, so that a crash here loses nothing. Then the root is set, if
/// it is lost.
///
/// # Durability
/// One fence: the copy that counts is durable before the other one is stored. That one is durable with the caller's next fence.
pub(super) fn restore<P: Pmem>(pool: &Pool<P>, found: &Found) -> Result<(), HeapError> {
    let pmem = pool.pmem();
    for at in places(found.header.heap_start) {
        pmem.flush(at, HEADER_BYTES);
    }
    pmem.fence()?;
    for (at, corrupted) in places(found.header.heap_start).into_iter().zip(found.corrupted) {
        if corrupted {
            store_at(pmem, at, &found.header);
        }
    }
    if found.root_is_lost { set_root(pool, &found.header) } else { Ok(()) }
}

/// Has the root name the header. Its fence is for the header, too, and for all that this thread has in flight.
pub(super) fn set_root<P: Pmem>(pool: &Pool<P>, header: &HeapHeader) -> Result<(), HeapError> {
    Ok(pool.logged_roots().set_lost(ROOT, root_target(header.heap_start))?)
}

/// What the root of a heap names that starts there.
pub(super) const fn root_target(heap_start: u64) -> (u64, u64, u64) {
    (heap_start, HEADER_BYTES, HeapHeader::LAYOUT)
}

/// Where the header of a heap lies, and its copy.
const fn places(offset: u64) -> [u64; 2] {
    [offset, offset.saturating_add(COPY_START)]
}

/// The copy at `at` of the header of the heap at `offset`, if it is whole.
fn read<P: Pmem>(pool: &Pool<P>, offset: u64, at: u64) -> Option<HeapHeader> {
    let pmem = pool.pmem();
    if at.checked_add(HEADER_BYTES).is_none_or(|end| end > pmem.len_bytes()) {
        return None;
    }
    let header: HeapHeader = from_bytes(|bytes| pmem.load(at, bytes));
    let is_whole = header.magic == MAGIC && header.crc == header.expected_crc();
    let is_here = header.heap_start == offset && header.pool_uuid == pool.uuid().into_bytes();
    (is_whole && is_here).then_some(header)
}

/// Whether this program can open a heap with this header, and whether its fields can be: every one that something is computed from.
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
    let places = || {
        // In this order: each is computed from what was found to be right before.
        let chunks_end = header.chunks_start.checked_add(header.chunk_bytes);
        let fits = layout.lanes_end() <= header.chunks_start && chunks_end.is_some_and(|end| end <= data.end);
        (!fits).then_some(("chunks_start", header.chunks_start))
    };
    let wrong = fields.into_iter().find(|(.., is_right)| !is_right);
    match wrong.map(|(field, found, _)| (field, found)).or_else(places) {
        None => Ok(()),
        Some((field, found)) => Err(HeapError::HeaderField { offset: header.heap_start, field, found }),
    }
}

/// Whether a heap can start there: lines are counted from there, and the header, the state words and the copy fit in.
fn is_heap_start(offset: u64, data: &Range<u64>) -> bool {
    let end = offset.checked_add(LANES_START);
    offset.is_multiple_of(LINE_BYTES) && data.start <= offset && end.is_some_and(|end| end <= data.end)
}
