//! A heap without transactions, with an oracle for its blocks, and helpers.

use crate::format::{BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::space::{
    CheckReport, Corruption, Freeing, Reservation, Resize, ResizeError, Space, SpaceError, SpaceOptions,
    Unlogged,
};
use core::ops::{Range, RangeInclusive};
use pm_core::{Pmem, Region};
use std::collections::BTreeMap;

/// A heap of a few chunks, and the blocks that should be in it.
pub(super) struct Heap {
    pub(super) region: Region,
    pub(super) layout: Layout,
    pub(super) chunks: u64,
    pub(super) options: SpaceOptions,
    pub(super) space: Space,
    /// The number of lines of each allocated block, by the offset of its payload.
    pub(super) blocks: BTreeMap<u64, u32>,
    pub(super) lsn: u64,
    pub(super) checkpoint_lsn: Lsn,
}

pub(super) fn layout(chunk_bytes: u64) -> Layout {
    Layout { seed: 0x5eed, heap_start: 0, lane_count: 1, lane_entries: 4, chunks_start: 4096, chunk_bytes }
}

impl Heap {
    pub(super) fn new(chunks: u64, chunk_bytes: u64) -> Self {
        Self::with(chunks, chunk_bytes, SpaceOptions { arena_count: Some(1), ..SpaceOptions::default() })
    }

    pub(super) fn with(chunks: u64, chunk_bytes: u64, options: SpaceOptions) -> Self {
        let layout = layout(chunk_bytes);
        let region = Region::anonymous(layout.chunk_offset(chunks)).unwrap();
        Space::format_chunks(&region, &layout, 0..chunks);
        let space = Space::open(layout, chunks, options);
        let (blocks, checkpoint_lsn) = (BTreeMap::new(), Lsn::MAX);
        Self { region, layout, chunks, options, space, blocks, lsn: 0, checkpoint_lsn }
    }

    pub(super) fn reopen(&mut self) {
        self.space = Space::open(self.layout, self.chunks, self.options);
    }

    pub(super) fn next_lsn(&mut self) -> Lsn {
        self.lsn += 1;
        Lsn::new(self.lsn)
    }

    pub(super) fn reserve(&self, lines: u64, align_bytes: u64) -> Result<Reservation, SpaceError> {
        let mut reservation = self.space.reserve(&self.region, lines, align_bytes, self.checkpoint_lsn)?;
        join(&self.space, &self.region, &mut reservation, Lsn::ZERO);
        Ok(reservation)
    }

    /// Allocates one block in a separate transaction.
    pub(super) fn allocate(&mut self, lines: u64, align_bytes: u64) -> Result<u64, SpaceError> {
        let mut reservation = self.reserve(lines, align_bytes)?;
        let payload =
            reservation.carve(lines, align_bytes).expect("there is room for what was reserved").start;
        self.commit(reservation, &[(payload, lines)]);
        Ok(payload)
    }

    /// Stores the headers, settles the reservation, and records the blocks.
    pub(super) fn commit(&mut self, reservation: Reservation, carved: &[(u64, u64)]) {
        for (payload, lines) in carved {
            self.fill(*payload, *lines);
        }
        let mut left = reservation.headers().count();
        for (offset, word) in reservation.headers() {
            self.region.store_u64(offset, word);
            left -= 1;
            // A kill between two stores leaves the former chain.
            assert!(left == 0 || self.chain() == self.blocks);
        }
        let lsn = self.next_lsn();
        self.space.settle(reservation, lsn);
        for (payload, _) in carved {
            let header = self.header(*payload).expect("just stored");
            self.blocks.insert(*payload, header.lines);
        }
    }

    /// Overwrites all of a payload, as a program may do before the commit.
    pub(super) fn fill(&self, payload: u64, lines: u64) {
        let bytes = usize::try_from(lines * LINE_BYTES - 8).unwrap();
        self.region.store(payload, &vec![payload.to_le_bytes()[1] | 1; bytes]);
    }

    pub(super) fn unlogged(&self) -> Unlogged<'_, Region> {
        Unlogged::new(&self.space, &self.region, false)
    }

    /// Allocates without the log.
    pub(super) fn allocate_unlogged(&self, lines: u64) -> Result<u64, SpaceError> {
        allocate_unlogged(&self.space, &self.region, lines, 64)
    }

    /// Resizes a block, and accepts any added lines.
    pub(super) fn resize(&self, payload: u64, wanted: RangeInclusive<u64>) -> Option<u32> {
        resize(self.unlogged(), payload, wanted, |_| true).unwrap()
    }

    /// Allocates without the log, fills the block, and records it.
    pub(super) fn try_add_unlogged(&mut self, lines: u64) {
        if let Ok(payload) = self.allocate_unlogged(lines) {
            let lines = self.header(payload).expect("just stored").lines;
            self.fill(payload, u64::from(lines));
            self.blocks.insert(payload, lines);
        }
    }

    pub(super) fn free(&mut self, payload: u64) {
        let freeing = self.space.begin_free(&self.region, payload).unwrap();
        let lsn = self.next_lsn();
        self.commit_free(freeing, lsn);
        self.blocks.remove(&payload).unwrap();
    }

    /// Stores the header, and finishes the freeing.
    pub(super) fn commit_free(&self, freeing: Freeing, lsn: Lsn) {
        if let Some((offset, word)) = freeing.header() {
            self.region.store_u64(offset, word);
        }
        self.space.finish_free(freeing, lsn);
    }

    /// Overwrites the header of a block.
    pub(super) fn corrupt(&self, payload: u64) {
        self.region.store_u64(Layout::header_offset_of(payload), 0x1234_5678_9abc_def0);
    }

    /// Repairs a corrupted header, and returns its offset. `None` if it is no longer corrupted.
    pub(super) fn repair(&self, corruption: &Corruption) -> Option<u64> {
        let (offset, word) = self.space.repair(&self.region, corruption).unwrap()?;
        self.region.store_u64(offset, word);
        Some(offset)
    }

    /// Repairs the headers that a check finds corrupted, and returns the corruptions.
    pub(super) fn repair_all(&self) -> Vec<Corruption> {
        let corruptions = self.space.check(&self.region).corruptions;
        for corruption in &corruptions {
            self.repair(corruption);
        }
        corruptions
    }

    pub(super) fn header(&self, payload: u64) -> Option<BlockHeader> {
        let offset = Layout::header_offset_of(payload);
        BlockHeader::from_word(self.region.load_u64(offset), self.layout.seed, offset)
    }

    /// Asserts that the chain is intact, and leads to exactly the blocks of the oracle.
    #[track_caller]
    pub(super) fn check(&self) {
        assert_eq!(self.chain(), self.blocks);
    }

    /// Follows the headers from the heap's first to its last, naively, and returns the allocated blocks.
    #[track_caller]
    fn chain(&self) -> BTreeMap<u64, u32> {
        let mut found = BTreeMap::new();
        let (start, end) = (self.layout.chunk_offset(0), self.layout.chunk_offset(self.chunks));
        let mut payload = start + LINE_BYTES;
        while payload < end + LINE_BYTES {
            let header = self.header(payload);
            let Some(header) = header else { panic!("the chain is broken at {payload:#x}") };
            match header.state {
                // The first payload of the next chunk follows its first line.
                BlockState::End => {
                    assert_eq!((payload - start) % self.layout.chunk_bytes, 0, "an end at {payload:#x}");
                    payload += LINE_BYTES;
                    continue;
                }
                BlockState::Allocated => assert_eq!(found.insert(payload, header.lines), None),
                BlockState::Free | BlockState::Lost | BlockState::Unreachable => {}
            }
            payload += u64::from(header.lines) * LINE_BYTES;
        }
        assert_eq!(payload, end + LINE_BYTES);
        found
    }

    /// Asserts that the chain is intact, that no header is corrupted, and that each block has the length that the oracle has.
    pub(super) fn check_lengths(&self) {
        self.check();
        assert_eq!(self.space.take_corruption(), []);
        for (payload, lines) in &self.blocks {
            assert_eq!(self.space.usable_bytes(&self.region, *payload), Ok(u64::from(*lines) * 64 - 8));
        }
    }

    /// Frees all blocks. Asserts that each chunk is one free extent again, by allocating a block of all its lines.
    pub(super) fn refill(&mut self) {
        for payload in self.blocks.keys().copied().collect::<Vec<_>>() {
            self.free(payload);
        }
        self.checkpoint_lsn = Lsn::MAX;
        for _ in 0..self.chunks {
            self.allocate(self.layout.chunk_lines() - 1, 64).unwrap();
            self.check();
        }
    }

    /// The contents of a block.
    pub(super) fn bytes(&self, payload: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(Layout::usable_bytes(self.blocks[&payload])).unwrap()];
        self.region.load(payload, &mut bytes);
        bytes
    }

    /// Asserts that all blocks have the contents they were filled with.
    #[track_caller]
    pub(super) fn check_contents(&self) {
        for (payload, lines) in &self.blocks {
            let bytes = self.bytes(*payload);
            let at = bytes.iter().position(|byte| *byte != payload.to_le_bytes()[1] | 1);
            // The additional line that a huge block may have is not filled.
            let filled = bytes.len() - if u64::from(*lines) > self.layout.chunk_lines() { 64 } else { 0 };
            assert!(at.is_none_or(|at| at >= filled), "the block at {payload:#x} was overwritten");
        }
    }
}

/// Allocates a block without the log, and without making it durable.
pub(super) fn allocate_unlogged<P: Pmem>(
    space: &Space,
    pmem: &P,
    lines: u64,
    align_bytes: u64,
) -> Result<u64, SpaceError> {
    Unlogged::new(space, pmem, false).reserve(lines, align_bytes)?.allocate()
}

/// Resizes a block. `accepts` decides whether a range of lines may be added.
pub(super) fn resize<P: Pmem>(
    unlogged: Unlogged<'_, P>,
    payload: u64,
    wanted: RangeInclusive<u64>,
    accepts: impl Fn(Range<u64>) -> bool,
) -> Result<Option<u32>, ResizeError> {
    let mut step = Resize::begin(unlogged, payload, wanted)?;
    loop {
        step = match step {
            Resize::Done(lines) => return Ok(lines),
            Resize::Grow(growth) if accepts(growth.added_range()) => growth.commit()?,
            Resize::Grow(growth) => growth.refuse(),
        };
    }
}

/// The report of a check, and the allocated blocks that it finds, with the number of lines of each.
pub(super) fn list<P: Pmem>(pmem: &P, layout: &Layout, chunks: u64) -> (CheckReport, BTreeMap<u64, u32>) {
    let mut blocks = BTreeMap::new();
    let report = CheckReport::of(pmem, layout, chunks, |block| {
        if block.state == BlockState::Allocated {
            blocks.insert(block.payload, block.lines);
        }
    });
    (report, blocks)
}

/// Pseudo-random numbers: Marsaglia's xorshift, 64 bits.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

/// Durably joins the blocks of a reservation into one free block.
pub(super) fn join<P: Pmem>(space: &Space, pmem: &P, reservation: &mut Reservation, lsn: Lsn) {
    if !reservation.is_one_block() {
        for (offset, word) in reservation.join_headers() {
            pmem.store_u64(offset, word);
            pmem.persist(offset, 8).expect("fences succeed");
        }
        space.finish_join(pmem, reservation, lsn);
    }
}
