//! Reports on a heap: its state before it is opened, and the result of opening it.

use super::error::HeapError;
use super::header::{LoadedChunkCount, LoadedHeader};
use crate::layout::Layout;
use crate::log::{Inspection, Recovery};
use pm_core::{Pmem, Pool};

/// The result of opening a heap: the corruption that was found, and the parts that were restored.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenReport {
    /// The result of recovery.
    pub recovery: Recovery,
    /// Whether the root that names the heap was lost to corruption in the pool's root directory, and set again.
    pub is_root_restored: bool,
    /// Whether the heap's header or its copy was corrupted, and restored from the other.
    pub is_header_restored: bool,
    /// Whether the number of chunks or its copy was corrupted, and restored from the other.
    pub is_chunk_count_restored: bool,
}

/// The state of a heap before it is opened. [`Heap::open`](crate::Heap::open) recovers it, and restores corrupted copies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapInspection {
    /// The layout of the heap.
    pub layout: Layout,
    /// Whether the header is corrupted, and whether its copy is.
    pub header_corrupted: [bool; 2],
    /// Whether the root that names the heap is lost to corruption in the pool's root directory.
    pub is_root_lost: bool,
    /// The number of chunks. If the pool has grown, opening adds chunks.
    pub chunk_count: u64,
    /// The number of corrupted copies of the number of chunks: 0 or 1.
    pub chunk_count_corrupted: u32,
    /// The state of the log.
    pub log: Inspection,
}

impl HeapInspection {
    /// Inspects the heap in a pool, which may be [open read-only](Pool::attach_read_only). Changes nothing.
    ///
    /// # Errors
    /// As for [`Heap::attach`](crate::Heap::attach).
    pub fn of<P: Pmem>(pool: &Pool<P>) -> Result<Self, HeapError> {
        let header = LoadedHeader::find(pool)?;
        let layout = Layout::of(&header.header);
        let log = Inspection::of(pool.pmem(), &layout)?;
        let chunks = LoadedChunkCount::load(pool.pmem(), &layout)?;
        Ok(Self {
            layout,
            header_corrupted: header.corrupted,
            is_root_lost: header.is_root_lost,
            chunk_count: chunks.count.min(layout.chunks_before(pool.data().end)),
            chunk_count_corrupted: chunks.corrupted,
            log,
        })
    }
}
