//! Long records: each has a block of the heap and a row of the table of extents of its own.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block for a long record.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongRecord {
    pub(super) offset: u64,
    /// The length of the block.
    pub(super) bytes: u64,
    /// The number of its row in the table of extents.
    pub(super) row: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    record: LongRecord,
    is_used: bool,
    /// Whether it may be in use although it is not marked: it existed at the open, and no sweep has ended since.
    is_sealed: bool,
}

#[derive(Debug, Default)]
struct Blocks {
    by_offset: BTreeMap<u64, Block>,
    /// The offsets of those that are neither used nor sealed.
    unused: Vec<u64>,
}

/// The blocks of all long records.
#[derive(Debug, Default)]
pub(crate) struct LongRecords {
    blocks: Mutex<Blocks>,
}

impl LongRecords {
    /// The length of the block for a record of `len` bytes.
    pub(crate) const fn block_bytes(len: u64) -> u64 {
        len.next_multiple_of(64)
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new block, which is in use; or one that was found by an open, which is sealed. False if there is one at this offset.
    pub(super) fn add(&self, record: LongRecord, is_fresh: bool) -> bool {
        let block = Block { record, is_used: is_fresh, is_sealed: !is_fresh };
        self.blocks().by_offset.insert(record.offset, block).is_none()
    }

    /// Takes a block of this length that is not in use.
    pub(super) fn take(&self, bytes: u64) -> Option<u64> {
        let mut blocks = self.blocks();
        let Blocks { by_offset, unused } = &mut *blocks;
        let has_length =
            |offset: &u64| by_offset.get(offset).is_some_and(|block| block.record.bytes == bytes);
        let offset = unused.swap_remove(unused.iter().position(has_length)?);
        if let Some(block) = by_offset.get_mut(&offset) {
            block.is_used = true;
        }
        Some(offset)
    }

    /// Marks the block at `offset` as used, if it is sealed. False if there is none, or none for a record of `len` bytes, or it is marked already.
    pub(super) fn mark(&self, offset: u64, len: Option<u64>) -> bool {
        let mut blocks = self.blocks();
        let is_wanted =
            |block: &&mut Block| len.is_none_or(|len| Self::block_bytes(len) == block.record.bytes);
        let Some(block) = blocks.by_offset.get_mut(&offset).filter(is_wanted) else { return false };
        !block.is_sealed || !core::mem::replace(&mut block.is_used, true)
    }

    /// Releases the block at `offset`, and returns whether there is one.
    pub(super) fn release(&self, offset: u64) -> bool {
        let mut blocks = self.blocks();
        let Some(block) = blocks.by_offset.get_mut(&offset) else { return false };
        let (was_used, is_sealed) = (core::mem::replace(&mut block.is_used, false), block.is_sealed);
        if was_used && !is_sealed {
            blocks.unused.push(offset);
        }
        true
    }

    /// Notes that everything in use is marked.
    pub(super) fn unseal(&self) {
        let mut blocks = self.blocks();
        let Blocks { by_offset, unused } = &mut *blocks;
        for (offset, block) in by_offset.iter_mut().filter(|(_, block)| block.is_sealed) {
            block.is_sealed = false;
            if !block.is_used {
                unused.push(*offset);
            }
        }
    }

    /// Takes the blocks that are not in use away, for the caller to free.
    pub(super) fn take_unused(&self) -> Vec<LongRecord> {
        let mut blocks = self.blocks();
        let Blocks { by_offset, unused } = &mut *blocks;
        let records = unused.drain(..).filter_map(|offset| by_offset.remove(&offset));
        records.map(|block| block.record).collect()
    }

    /// Puts a block back that could not be freed. It is not used again in this session.
    pub(super) fn put_back(&self, record: LongRecord) {
        let block = Block { record, is_used: false, is_sealed: false };
        self.blocks().by_offset.insert(record.offset, block);
    }

    /// The bytes of all blocks, and of those in use.
    pub(super) fn usage(&self) -> (u64, u64) {
        self.blocks().by_offset.values().fold((0, 0), |(all, used), block| {
            (all + block.record.bytes, used + if block.is_used { block.record.bytes } else { 0 })
        })
    }

    pub(super) fn offsets(&self) -> Vec<u64> {
        self.blocks().by_offset.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_no_sweep_has_marked_are_freed_when_it_ends() {
        let records = LongRecords::default();
        for offset in [4096, 8192, 12288] {
            assert!(records.add(LongRecord { offset, bytes: 2048, row: 0 }, false));
        }
        assert!(records.mark(4096, Some(2000)) && records.mark(8192, None));
        assert!(!records.mark(4096, Some(2000)), "two entries have it");
        assert!(!records.mark(12288, Some(1000)) && !records.mark(64, None));
        assert!(records.release(8192));
        assert!(records.take_unused().is_empty() && records.take(2048).is_none());
        records.unseal();
        assert_eq!(records.usage(), (3 * 2048, 2048));
        assert_eq!(records.take(2048), Some(8192));
        let unused = records.take_unused();
        assert!(matches!(unused.as_slice(), [LongRecord { offset: 12288, .. }]), "{unused:?}");
    }
}
