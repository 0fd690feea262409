//! One buffer: the blocks that wait for the device, and their slots.

use super::format::BLOCK;
use super::slots::Slots;
use core::ops::Range;
use rustc_hash::{FxHashMap, FxHashSet};

/// The most bytes of one store to the device.
const RUN_BYTES: usize = 256 << 10;

/// What became of a drain: the first block that could not be stored, and why.
pub(crate) type Drained<F> = Result<(), (u64, F)>;

/// The blocks of a buffer. The caller has its lock.
#[derive(Debug)]
pub(super) struct Queue {
    /// The buffer's slots are `first..first + count`.
    first: u64,
    count: u64,
    /// Slots from here on are free, and so are those of `freed`.
    next: u64,
    freed: Vec<u64>,
    slot_of: FxHashMap<u64, u64>,
    /// Blocks in the order in which they arrived.
    arrived: Vec<u64>,
    sequence: u64,
    run: Box<[u8]>,
}

impl Queue {
    pub(super) fn new(first: u64, count: u64) -> Self {
        Self {
            first,
            count,
            next: 0,
            freed: Vec::new(),
            slot_of: FxHashMap::default(),
            arrived: Vec::new(),
            sequence: 0,
            run: vec![0; RUN_BYTES].into(),
        }
    }

    /// The slot that holds a block.
    pub(super) fn slot(&self, block: u64) -> Option<u64> {
        self.slot_of.get(&block).copied()
    }

    /// The number of blocks.
    pub(super) fn len(&self) -> usize {
        self.slot_of.len()
    }

    /// Whether a block needs a slot and there is none.
    pub(super) fn is_full(&self) -> bool {
        self.next == self.count && self.freed.is_empty()
    }

    /// Puts a block's new bytes into a free slot, and frees its old one: a server that is killed leaves one of them complete. There is a free slot.
    pub(super) fn put(&mut self, slots: &Slots, block: u64, bytes: &[u8]) {
        let slot = self.freed.pop().unwrap_or_else(|| {
            self.next += 1;
            self.first + self.next - 1
        });
        self.sequence += 1;
        slots.fill(slot, block, self.sequence, bytes);
        if let Some(old) = self.slot_of.insert(block, slot) {
            slots.free(old);
            self.freed.push(old);
        } else {
            self.arrived.push(block);
        }
    }

    /// Drops blocks whose newest bytes are on the device.
    pub(super) fn forget(&mut self, slots: &Slots, blocks: Range<u64>) {
        let before = self.slot_of.len();
        for block in blocks.clone() {
            if let Some(slot) = self.slot_of.remove(&block) {
                slots.free(slot);
                self.freed.push(slot);
            }
        }
        if self.slot_of.len() != before {
            self.arrived.retain(|block| !blocks.contains(block));
        }
    }

    /// Stores all blocks to the device by `store`, which gets the number of the first block of each run, and calls `fence`. Frees the slots of all blocks
    /// but those that could not be stored, and returns the first of these.
    pub(super) fn drain<F: Clone, E>(
        &mut self,
        slots: &Slots,
        is_batched: bool,
        mut store: impl FnMut(u64, &[u8]) -> Result<(), F>,
        fence: impl FnOnce() -> Result<(), E>,
    ) -> Result<Drained<F>, E> {
        let mut blocks = self.arrived.clone();
        if is_batched {
            blocks.sort_unstable();
        }
        let mut failed = Vec::new();
        let mut rest = &blocks[..];
        while let Some(&first) = rest.first() {
            let is_next = |(at, block): (usize, &u64)| *block == first + at as u64;
            let most = if is_batched { RUN_BYTES / BLOCK } else { 1 };
            let count = rest.iter().enumerate().take(most).take_while(|&next| is_next(next)).count();
            let (run, after) = rest.split_at(count);
            rest = after;
            if self.store_run(slots, run, &mut store).is_err() {
                // Block by block, so that one that cannot be stored does not keep the others.
                for block in run {
                    let stored = self.store_run(slots, core::slice::from_ref(block), &mut store);
                    failed.extend(stored.err().map(|fault| (*block, fault)));
                }
            }
        }
        fence()?;
        let kept: FxHashSet<u64> = failed.iter().map(|(block, _)| *block).collect();
        let keeps = |block: u64| kept.contains(&block);
        if failed.is_empty() {
            self.slot_of.drain().for_each(|(_, slot)| slots.free(slot));
            (self.next, self.freed) = (0, Vec::new());
            self.arrived.clear();
        } else {
            for (_, slot) in self.slot_of.extract_if(|block, _| !keeps(*block)) {
                slots.free(slot);
                self.freed.push(slot);
            }
            self.arrived.retain(|block| keeps(*block));
        }
        Ok(failed.into_iter().next().map_or(Ok(()), Err))
    }

    /// Stores adjacent blocks by one call.
    fn store_run<F>(
        &mut self,
        slots: &Slots,
        blocks: &[u64],
        store: &mut impl FnMut(u64, &[u8]) -> Result<(), F>,
    ) -> Result<(), F> {
        let first = self.slot_of[&blocks[0]];
        if (first..).zip(blocks).all(|(slot, block)| self.slot_of[block] == slot) {
            let last = first + blocks.len() as u64 - 1;
            let len = (blocks.len() - 1) * BLOCK + slots.block_len(last);
            return slots.with_bytes(first, len, |bytes| store(blocks[0], bytes));
        }
        let mut end = 0;
        for block in blocks {
            let (slot, start) = (self.slot_of[block], end);
            end += slots.block_len(slot);
            slots.load(slot, 0, &mut self.run[start..end]);
        }
        store(blocks[0], &self.run[..end])
    }
}
