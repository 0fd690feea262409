//! Stray writes to a region with a heap: the pool's header, the roots, the logs, and the headers and contents of blocks. Afterwards no call panics,
//! no live blocks overlap, each corrupted header is reported, and the contents of blocks are unchanged except for the stray writes.

use crate::harness::bytes;
use crate::links::link_to;
use pm_alloc::{Corruption, CorruptionKind, FreeError, Heap, HeapError, HeapOptions, TxError};
use pm_core::{Link, Pmem, Region};
use pm_testkit::Rng;
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::ops::Range;

/// The environment variable with the number of stray writes. The default is some thousands; a release is checked with 1,000,000.
const WRITES: &str = "PM_STRAY_WRITES";
const REGION_BYTES: u64 = 1 << 17;

type HeapOn<'r> = Heap<AnyPmem<'r>>;

/// The contents of blocks, by offset.
type Blocks = BTreeMap<u64, Vec<u8>>;

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(32).chunk_bytes(4096)
}

fn random_bytes(random: &mut Rng, len: u64) -> Vec<u8> {
    (0..len).map(|_| random.next().to_le_bytes()[4]).collect()
}

fn alloc(heap: &HeapOn<'_>, contents: &[u8]) -> Result<u64, TxError> {
    heap.transaction(|tx| tx.alloc_slice(contents).map(Link::offset))
}

fn free(heap: &HeapOn<'_>, payload: u64) -> Result<(), TxError> {
    heap.transaction(|tx| tx.free(link_to::<u8>(payload)))
}

/// Allocates blocks of many lengths, one longer than a chunk, with free extents between them.
fn populate(region: &Region, random: &mut Rng) -> Blocks {
    let heap = Heap::format(any(region), &options()).unwrap();
    let mut blocks = Blocks::new();
    for number in 0..120 {
        let len = if number == 40 { 7000 } else { 1 + random.below(700) };
        let contents = random_bytes(random, len);
        match alloc(&heap, &contents) {
            Ok(payload) => drop(blocks.insert(payload, contents)),
            Err(TxError::Space(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    blocks.retain(|payload, _| random.below(3) > 0 || free(&heap, *payload).is_err());
    blocks
}

/// Writes 1 to 256 random bytes at a random offset, or over a header.
fn stray_write(region: &Region, blocks: &Blocks, random: &mut Rng) -> Range<u64> {
    let at = if random.below(2) == 0 {
        let (payload, _) = blocks.iter().nth(random.index(blocks.len())).unwrap();
        payload - 8 + random.below(8)
    } else {
        random.below(REGION_BYTES)
    };
    let len = (1 + random.below(256)).min(REGION_BYTES - at);
    region.store(at, &random_bytes(random, len));
    at..at + len
}

fn headers(region: &Region, blocks: &Blocks) -> BTreeMap<u64, u64> {
    blocks.keys().map(|payload| (*payload, region.load_u64(payload - 8))).collect()
}

/// Asserts that the contents of blocks have changed only where stray writes hit them.
fn assert_unchanged(region: &Region, blocks: &Blocks, stray: &[Range<u64>]) {
    for (payload, contents) in blocks {
        let mut found = vec![0; contents.len()];
        region.load(*payload, &mut found);
        for (at, (found, written)) in (*payload..).zip(found.iter().zip(contents)) {
            let hit = stray.iter().any(|range| range.contains(&at));
            assert!(hit || found == written, "byte {at:#x} of the block at {payload:#x} has changed");
        }
    }
}

/// Allocates and fills all free space. Asserts that no block overlaps a live one or another new one.
fn fill_free_space(heap: &HeapOn<'_>, live: &Blocks) -> Vec<u64> {
    let mut extents: BTreeMap<u64, u64> =
        live.iter().map(|(payload, contents)| (*payload, payload + contents.len() as u64)).collect();
    let mut taken = Vec::new();
    for len in [900, 200, 56] {
        loop {
            match alloc(heap, &vec![0xAB; len]) {
                Ok(payload) => {
                    let end = payload + len as u64;
                    let before = extents.range(..end).next_back();
                    let overlaps = before.is_some_and(|(_, other_end)| *other_end > payload);
                    assert!(!overlaps, "{payload:#x}..{end:#x} overlaps {before:x?}");
                    extents.insert(payload, end);
                    taken.push(payload);
                }
                Err(TxError::Space(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    taken
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    writes: u64,
    headers_hit: u64,
    not_opened: u64,
}

/// Checks a heap that was open during the writes. Only blocks with corrupted headers are lost.
fn check_open_heap(region: &Region, heap: &HeapOn<'_>, blocks: &Blocks, hit: &[u64], stray: &[Range<u64>]) {
    let taken = fill_free_space(heap, blocks);
    assert_unchanged(region, blocks, stray);
    for payload in blocks.keys() {
        match free(heap, *payload) {
            Ok(()) => assert!(!hit.contains(payload), "{payload:#x} was freed, and its header is corrupted"),
            Err(TxError::Free(FreeError::Corrupted { offset, header_offset })) => {
                assert!(hit.contains(payload) && offset == *payload && header_offset == payload - 8);
            }
            Err(error) => panic!("{error}"),
        }
    }
    let corruptions = heap.take_corruption();
    assert!(corruptions.iter().all(|corruption| corruption.kind != CorruptionKind::LengthUnknown));
    for payload in hit {
        let is_of_payload = |corruption: &&Corruption| corruption.header_offset == payload - 8;
        assert_eq!(corruptions.iter().filter(is_of_payload).count(), 1, "{payload:#x}");
    }
    for payload in taken {
        free(heap, payload).unwrap();
    }
}

/// Checks a heap that was opened after the writes. Corrupted headers are reported, their extents are not allocated, and other blocks can be freed.
fn check_reopened(region: &Region, heap: &HeapOn<'_>, blocks: &Blocks, hit: &[u64], stray: &[Range<u64>]) {
    let report = heap.check();
    for payload in hit {
        let inside = |corruption: &Corruption| corruption.extent.contains(payload);
        assert!(report.corruptions.iter().any(inside), "{payload:#x}: {report:x?}");
    }
    fill_free_space(heap, blocks);
    assert_unchanged(region, blocks, stray);
    for payload in blocks.keys() {
        let covered = || report.corruptions.iter().any(|corruption| corruption.extent.contains(payload));
        match free(heap, *payload) {
            Ok(()) => assert!(!hit.contains(payload), "{payload:#x} was freed, and its header is corrupted"),
            Err(TxError::Free(FreeError::Corrupted { .. } | FreeError::NotABlock { .. })) => {
                assert!(covered())
            }
            Err(error) => panic!("{error}"),
        }
    }
    fill_free_space(heap, &Blocks::new());
}

fn round(region: &Region, image: &[u8], blocks: &Blocks, seed: u64, tally: &mut Tally) {
    let mut random = Rng::of(seed);
    region.store(0, image);
    let before = headers(region, blocks);
    let mut write = || -> Vec<Range<u64>> {
        (0..=random.below(3)).map(|_| stray_write(region, blocks, &mut random)).collect()
    };
    let is_hit = |payload: &&u64| region.load_u64(**payload - 8) != before[*payload];
    let hit = || -> Vec<u64> { blocks.keys().filter(is_hit).copied().collect() };
    let open = seed.is_multiple_of(2).then(|| Heap::attach(any(region), &options()).unwrap());
    if let Some(heap) = &open {
        heap.scan_ahead(usize::MAX).unwrap();
    }
    let stray = write();
    let hit = hit();
    tally.writes += stray.len() as u64;
    tally.headers_hit += hit.len() as u64;
    if let Some(heap) = open {
        check_open_heap(region, &heap, blocks, &hit, &stray);
    } else {
        match Heap::attach(any(region), &options()) {
            Ok(heap) => check_reopened(region, &heap, blocks, &hit, &stray),
            // Several writes may corrupt both copies of a structure that opening needs.
            Err(
                HeapError::Pool(_)
                | HeapError::NotAHeap
                | HeapError::Root(_)
                | HeapError::HeaderCorrupted { .. }
                | HeapError::ChunkCountCorrupted { .. }
                | HeapError::Recover(_),
            ) if stray.len() > 1 => {
                tally.not_opened += 1;
                assert_unchanged(region, blocks, &stray);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn stray_writes_lose_only_blocks_with_corrupted_headers() {
    let wanted = std::env::var(WRITES).map_or(5_000, |count| count.parse().unwrap());
    let mut tally = Tally::default();
    let mut seed = 0;
    while tally.writes < wanted {
        let region = Region::anonymous(REGION_BYTES).unwrap();
        let blocks = populate(&region, &mut Rng::of(seed));
        let image = bytes(&region);
        for _ in 0..200 {
            seed += 1;
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                round(&region, &image, &blocks, seed, &mut tally);
            }));
            assert!(result.is_ok(), "no panic in the round with seed {seed}");
        }
    }
    println!("{tally:?}");
    assert!(tally.headers_hit > wanted / 3, "{tally:?}");
}

/// The expected state of a live block.
struct Live {
    /// The header as it was written.
    header: u64,
    /// Its contents, including stray writes.
    contents: Vec<u8>,
    /// Whether a reported corruption has an extent that contains this payload.
    is_reported: bool,
}

/// A heap that is corrupted and repaired repeatedly, and a shadow of its live blocks.
struct Campaign<'r> {
    region: &'r Region,
    heap: Option<HeapOn<'r>>,
    live: BTreeMap<u64, Live>,
    random: Rng,
    tally: &'r mut RepairTally,
}

#[derive(Clone, Copy, Debug, Default)]
struct RepairTally {
    writes: u64,
    reopened: u64,
    repairs: u64,
    headers_hit: u64,
    blocks: u64,
}

impl<'r> Campaign<'r> {
    fn new(region: &'r Region, seed: u64, tally: &'r mut RepairTally) -> Self {
        let heap = Heap::format(any(region), &options()).unwrap();
        Self { region, heap: Some(heap), live: BTreeMap::new(), random: Rng::of(seed), tally }
    }

    fn heap(&mut self) -> &mut HeapOn<'r> {
        self.heap.as_mut().unwrap()
    }

    fn reopen(&mut self) {
        self.heap = None;
        self.heap = Some(Heap::attach(any(self.region), &options()).unwrap());
        self.tally.reopened += 1;
    }

    fn loaded(&self, payload: u64, len: usize) -> Vec<u8> {
        let mut found = vec![0; len];
        self.region.load(payload, &mut found);
        found
    }

    fn is_hit(&self, payload: u64) -> bool {
        self.region.load_u64(payload - 8) != self.live[&payload].header
    }

    /// Allocates filled and uninitialized blocks, and frees others. A freed block is coalesced with its free neighbours; the old header of the
    /// neighbour after it stays in memory.
    fn work(&mut self) {
        let wanted = if self.live.len() < 60 { 40 } else { 6 };
        for _ in 0..wanted {
            let len = match self.random.below(40) {
                0 => 4500 + self.random.below(6000),
                1..20 => 1 + self.random.below(180),
                _ => 1 + self.random.below(900),
            };
            let is_filled = self.random.below(2) == 0;
            let bytes = random_bytes(&mut self.random, len);
            let allocated = if is_filled {
                alloc(self.heap(), &bytes)
            } else {
                self.heap().transaction(|tx| tx.alloc_uninit::<u8>(len).map(Link::offset))
            };
            match allocated {
                Ok(payload) => self.keep(payload, bytes.len()),
                Err(TxError::Space(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..self.live.len() / 5 {
            let index = self.random.index(self.live.len());
            let payload = *self.live.keys().nth(index).unwrap();
            if self.is_hit(payload) {
                let refused = free(self.heap(), payload);
                assert!(matches!(refused, Err(TxError::Free(_))), "{payload:#x}: {refused:?}");
            } else {
                free(self.heap(), payload).unwrap_or_else(|error| panic!("{payload:#x}: {error}"));
                self.live.remove(&payload);
            }
        }
    }

    /// Adds a newly allocated block to the shadow.
    fn keep(&mut self, payload: u64, len: usize) {
        let end = payload + len as u64;
        let before = self.live.range(..end).next_back();
        let overlaps = before.is_some_and(|(other, live)| other + live.contents.len() as u64 > payload);
        assert!(!overlaps, "{payload:#x}..{end:#x} was allocated over {:x?}", before.map(|(other, _)| other));
        let live = Live {
            header: self.region.load_u64(payload - 8),
            contents: self.loaded(payload, len),
            is_reported: false,
        };
        self.live.insert(payload, live);
        self.tally.blocks += 1;
    }

    /// Writes at random offsets in the chunks; or anywhere in the region, after the heap was closed and its log is empty. If a write hits the
    /// contents of blocks, the shadow is changed in the same way.
    fn hit(&mut self) {
        let chunks = self.heap().layout().chunks_start;
        let is_anywhere = self.random.below(8) == 0;
        if is_anywhere {
            // Opening restores the copies of the pool's header. An earlier write may have corrupted the backup, which is after the chunks.
            // Closing empties the log.
            self.reopen();
            self.heap = None;
        }
        let count = if is_anywhere { 1 } else { 1 + self.random.below(3) };
        for _ in 0..count {
            let at = if is_anywhere {
                self.random.below(REGION_BYTES)
            } else if self.random.below(3) > 0 && !self.live.is_empty() {
                let index = self.random.index(self.live.len());
                self.live.keys().nth(index).unwrap() - 8 + self.random.below(8)
            } else {
                chunks + self.random.below(REGION_BYTES - chunks)
            };
            let most = if self.random.below(2) == 0 { 8 } else { 256 };
            let len = (1 + self.random.below(most)).min(REGION_BYTES - at);
            let (bytes, end) = (random_bytes(&mut self.random, len), at + len);
            let is_header_hit = |live: &Self, payload: &u64| live.is_hit(*payload);
            let hit_before = self.live.keys().filter(|payload| is_header_hit(self, payload)).count();
            self.region.store(at, &bytes);
            let hit_after = self.live.keys().filter(|payload| is_header_hit(self, payload)).count();
            self.tally.headers_hit += hit_after.saturating_sub(hit_before) as u64;
            for (payload, live) in &mut self.live {
                let block_end = payload + live.contents.len() as u64;
                let (from, to) = (at.max(*payload), end.min(block_end));
                if from < to {
                    let index = |offset: u64| usize::try_from(offset).unwrap();
                    live.contents[index(from - payload)..index(to - payload)]
                        .copy_from_slice(&bytes[index(from - at)..index(to - at)]);
                }
            }
            self.tally.writes += 1;
        }
        if is_anywhere || self.random.below(2) == 0 {
            self.reopen();
        }
    }

    /// Asserts that each block is listed, or its header is corrupted and reported, and that no contents have changed.
    fn compare(&mut self) {
        let mut listed = std::collections::BTreeSet::new();
        let report = self.heap().check_with(|block| {
            if block.state == pm_alloc::format::BlockState::Allocated {
                listed.insert(block.payload);
            }
        });
        let reported: Vec<Corruption> =
            report.corruptions.into_iter().chain(self.heap().take_corruption()).collect();
        let payloads: Vec<u64> = self.live.keys().copied().collect();
        for payload in payloads {
            let is_hit = self.is_hit(payload);
            let found = self.loaded(payload, self.live[&payload].contents.len());
            let live = self.live.get_mut(&payload).unwrap();
            live.is_reported |= reported.iter().any(|corruption| corruption.extent.contains(&payload));
            let is_known = if is_hit { live.is_reported } else { listed.contains(&payload) };
            assert!(is_known, "{payload:#x} is listed or reported: hit {is_hit}, reported {reported:x?}");
            let changed = found.iter().zip(&live.contents).position(|(found, expected)| found != expected);
            assert_eq!(changed, None, "no byte of the block at {payload:#x} changes; hit {is_hit}");
        }
    }

    fn repair_all(&mut self) {
        for _ in 0..1000 {
            let Some(corruption) = self.heap().check().corruptions.into_iter().next() else { return };
            for (_, live) in self.live.range_mut(corruption.extent.clone()) {
                live.is_reported = true;
            }
            assert!(self.heap().repair(&corruption).unwrap(), "{corruption:x?}");
            self.tally.repairs += 1;
            self.compare();
        }
        panic!("corruption remains after 1000 repairs");
    }

    /// Allocates and overwrites all free space. Asserts that no live block changes.
    fn fill(&mut self) {
        let mut filled = Vec::new();
        for len in [900_usize, 200, 56] {
            while let Ok(payload) = alloc(self.heap(), &vec![0x5A; len]) {
                self.keep(payload, len);
                filled.push(payload);
            }
        }
        self.compare();
        for payload in filled {
            free(self.heap(), payload).unwrap();
            self.live.remove(&payload);
        }
    }

    fn round(&mut self) {
        self.work();
        self.compare();
        self.hit();
        if self.random.below(4) > 0 {
            self.compare();
        }
        if self.random.below(4) > 0 {
            self.repair_all();
        }
        if self.random.below(4) == 0 {
            self.reopen();
        }
        self.fill();
    }
}

/// After repairs and further allocations, every live block whose header is intact is unchanged and listed.
#[test]
fn repair_keeps_every_live_block() {
    let wanted = std::env::var(WRITES).map_or(3_000, |count| count.parse().unwrap());
    let first: u64 = std::env::var("PM_STRAY_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut tally = RepairTally::default();
    let mut seed = first;
    while tally.writes < wanted {
        let region = Region::anonymous(REGION_BYTES).unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut campaign = Campaign::new(&region, seed, &mut tally);
            (0..10).for_each(|_| campaign.round());
        }));
        assert!(result.is_ok(), "no panic in the campaign with seed {seed}");
        seed += 1;
    }
    println!("{tally:?}");
    assert!(tally.headers_hit > wanted / 4 && tally.repairs > wanted / 8, "{tally:?}");
}
