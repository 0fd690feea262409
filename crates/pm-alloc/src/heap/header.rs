//! The header of a heap: written once, twice.

use crate::error::HeapError;
use crate::format::{HEADER_BYTES, HeapHeader, KNOWN_INCOMPAT, KNOWN_RO_COMPAT, MAGIC, VERSION};
use crate::layout::Layout;
use pm_core::{Pmem, bytes_of, from_bytes};

/// The header of a heap with this layout.
pub(super) fn new(layout: &Layout) -> HeapHeader {
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
        reserved: [0; 4012],
        crc: 0,
    }
    .sealed()
}

/// Stores the header's copy, and flushes it; a fence makes it durable.
pub(super) fn store_copy<P: Pmem>(pmem: &P, header: &HeapHeader) {
    let offset = header.heap_start + HEADER_BYTES;
    pmem.store(offset, bytes_of(header));
    pmem.flush(offset, HEADER_BYTES);
}

/// The header at `offset`, or its copy where it is damaged, and whether it is.
pub(super) fn find<P: Pmem>(pmem: &P, offset: u64) -> Result<(HeapHeader, bool), HeapError> {
    for (at, damaged) in [(offset, false), (offset + HEADER_BYTES, true)] {
        if at.checked_add(HEADER_BYTES).is_none_or(|end| end > pmem.len_bytes()) {
            break;
        }
        let header: HeapHeader = from_bytes(|bytes| pmem.load(at, bytes));
        if header.magic == MAGIC && header.crc == header.expected_crc() && header.heap_start == offset {
            check(&header)?;
            return Ok((header, damaged));
        }
    }
    Err(HeapError::HeaderDamaged { offset })
}

/// Stores the header again where it was damaged; its copy is not touched.
pub(super) fn restore<P: Pmem>(pmem: &P, header: &HeapHeader) -> Result<(), HeapError> {
    pmem.store(header.heap_start, bytes_of(header));
    pmem.persist(header.heap_start, HEADER_BYTES)?;
    Ok(())
}

fn check(header: &HeapHeader) -> Result<(), HeapError> {
    if header.version > VERSION {
        return Err(HeapError::FutureVersion { found: header.version, supported: VERSION });
    }
    let unknown = header.features_incompat & !KNOWN_INCOMPAT | header.features_ro_compat & !KNOWN_RO_COMPAT;
    if unknown != 0 {
        return Err(HeapError::UnknownFeatures { unknown });
    }
    let layout = Layout::of(header);
    let sound = (1..=1024).contains(&header.lane_count)
        && header.lane_entries >= 4
        && header.chunk_bytes.is_power_of_two()
        && layout.lanes_end() <= header.chunks_start;
    if sound { Ok(()) } else { Err(HeapError::HeaderDamaged { offset: header.heap_start }) }
}
