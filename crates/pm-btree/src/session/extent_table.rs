//! The table of extents: what the heap's blocks of the store are. Each change of it is one transaction of the heap, which also allocates or frees the
//! block.

use super::classes::{CLASS_COUNT, Class};
use crate::error::{Corruption, CorruptionKind, OpenError, WriteError};
use crate::format::{
    EXTENT_CHUNK_MAGIC, ExtentChunk, ExtentRow, FEATURE_RETURNED_SPACE, LONG_RECORD, ROOT, ROWS, StoreBlock,
    StoreHeader, checked, unchecked,
};
use core::mem::offset_of;
use pm_alloc::{Heap, Tx, TxError};
use pm_core::{Link, Pmem, field};

/// What a block of the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// An extent with units of this class.
    Extent(Class),
    /// A long record, in a block of this length.
    LongRecord {
        /// The length.
        bytes: u64,
    },
}

impl Content {
    /// The value of the row's checked word.
    const fn value(self) -> u64 {
        match self {
            // The class of nodes is 0, and 0 is the value in a free row.
            Self::Extent(class) => class.number() + 1,
            Self::LongRecord { bytes } => LONG_RECORD | bytes << 8,
        }
    }

    fn from_value(value: u64) -> Option<Self> {
        match value {
            1..=0xff if value != LONG_RECORD => Class::from_number(value - 1).map(Self::Extent),
            _ if value & 0xff == LONG_RECORD => Some(Self::LongRecord { bytes: value >> 8 }),
            _ => None,
        }
    }
}

const _: () = assert!((CLASS_COUNT as u64) < LONG_RECORD);

/// The rows of the table.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The number, the offset of the block and the content of each row in use.
    pub(super) used: Vec<(u32, u64, Content)>,
    /// The numbers of free rows.
    pub(super) free: Vec<u32>,
    /// The number of rows that were ever used.
    pub(super) count: u32,
    /// The first zero row before the last one that was used: it is lost.
    pub(super) lost: Option<Corruption>,
}

/// Reads the table.
pub(super) fn read_rows<P: Pmem>(heap: &Heap<P>) -> Result<Rows, OpenError> {
    heap.view(|view| {
        let store = view.root::<StoreBlock<'_>>(ROOT)?.ok_or(OpenError::NotAStore)?;
        let corrupted = |offset| Corruption::new(offset, CorruptionKind::ExtentTable);
        let mut link = view.read(store.field(field!(StoreBlock<'_>, extents)))?;
        let (mut rows, mut row, mut first_zero) = (Rows::default(), 0, None);
        let mut chunks_left = heap.pmem().len_bytes() / size_of::<ExtentChunk<'_>>() as u64;
        while !link.is_null() {
            let chunk = view.read(link).map_err(|_| corrupted(link.offset()))?;
            if chunk.magic != EXTENT_CHUNK_MAGIC || chunks_left == 0 {
                return Err(corrupted(link.offset()).into());
            }
            chunks_left -= 1;
            let places = (link.offset() + offset_of!(ExtentChunk<'_>, rows) as u64..)
                .step_by(size_of::<ExtentRow<'_>>());
            for (ExtentRow { extent, class }, place) in chunk.rows.iter().zip(places) {
                let number = row;
                row += 1;
                if extent.is_null() && *class == 0 {
                    first_zero = first_zero.or(Some(place));
                    continue;
                }
                if extent.is_null() {
                    unchecked(*class, place).filter(|value| *value == 0).ok_or_else(|| corrupted(place))?;
                    rows.free.push(number);
                } else {
                    let content = unchecked(*class, extent.offset()).and_then(Content::from_value);
                    let content = content.ok_or_else(|| corrupted(extent.offset()))?;
                    rows.used.push((number, extent.offset(), content));
                }
                rows.count = row;
                rows.lost = first_zero.map(corrupted);
            }
            link = chunk.next;
        }
        Ok(rows)
    })
}

/// Allocates a block, and stores a row for it. `is_zeroed`: the bytes of the block become 0. `may_grow`: if there is no room, the heap grows, if it may.
/// Returns the offset of the block.
///
/// # Durability
/// One transaction of the heap: a crash leaves both or neither.
pub(super) fn add_block<P: Pmem>(
    heap: &Heap<P>,
    row: u32,
    bytes: u64,
    content: Content,
    is_zeroed: bool,
    may_grow: bool,
) -> Result<u64, WriteError> {
    let added = heap.transaction(|tx| {
        if !may_grow {
            tx.forbid_growth();
        }
        let extent: Link<'_, u8> = if is_zeroed { tx.alloc_zeroed(bytes)? } else { tx.alloc_uninit(bytes)? };
        if matches!(content, Content::LongRecord { .. }) {
            require_feature(tx)?;
        }
        let place = row_at(tx, row)?;
        let class = checked(content.value(), extent.offset());
        tx.write(place, &ExtentRow { extent, class })?;
        Ok(extent.offset())
    });
    added.map_err(WriteError::from)
}

/// Frees the block of a row, and the row.
///
/// # Durability
/// One transaction of the heap: a crash leaves both or neither.
pub(super) fn free_block<P: Pmem>(heap: &Heap<P>, row: u32) -> Result<(), WriteError> {
    let freed = heap.transaction(|tx| {
        require_feature(tx)?;
        let place = row_at(tx, row)?;
        let ExtentRow { extent, .. } = tx.read(place)?;
        tx.free(extent)?;
        tx.write(place, &ExtentRow { extent: Link::NULL, class: checked(0, place.offset()) })?;
        Ok(())
    });
    freed.map_err(WriteError::from)
}

/// The place of a row. Allocates the blocks of the table up to it.
fn row_at<'p, P: Pmem>(tx: &mut Tx<'p, P>, row: u32) -> Result<Link<'p, ExtentRow<'p>>, TxError> {
    let store = tx.root::<StoreBlock<'_>>(ROOT)?.expect("the store is open");
    let mut chunk = tx.read(store.field(field!(StoreBlock<'_>, extents)))?;
    for _ in 0..row as usize / ROWS {
        let place = chunk.field(field!(ExtentChunk<'_>, next));
        let mut next = tx.read(place)?;
        if next.is_null() {
            next = tx.alloc_zeroed(1)?;
            tx.write(next.field(field!(ExtentChunk<'_>, magic)), &EXTENT_CHUNK_MAGIC)?;
            tx.write(place, &next)?;
        }
        chunk = next;
    }
    let rows = chunk.field(field!(ExtentChunk<'_>, rows));
    Ok(rows.get((row as usize % ROWS) as u64).expect("a row of the block"))
}

/// Sets the feature without which a program would take the table for a corrupted one.
fn require_feature<P: Pmem>(tx: &mut Tx<'_, P>) -> Result<(), TxError> {
    let store = tx.root::<StoreBlock<'_>>(ROOT)?.expect("the store is open");
    let place = store.field(field!(StoreBlock<'_>, header));
    let header: StoreHeader = tx.read(place)?;
    if header.features_incompat & FEATURE_RETURNED_SPACE == 0 {
        let features_incompat = header.features_incompat | FEATURE_RETURNED_SPACE;
        let header = StoreHeader { features_incompat, ..header };
        tx.write(place, &StoreHeader { crc: header.expected_crc(), ..header })?;
    }
    Ok(())
}
