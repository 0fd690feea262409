//! Stray writes all over a region with a heap in use: into the pool's header, the roots, the logs, the headers of blocks and
//! what they hold. Nothing panics, no two live blocks overlap, each damaged header is found, and what was not hit is as it was.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Damage, DamageKind, FreeError, Heap, HeapError, HeapOptions, TxError};
use pm_core::{Link, Pmem, PoolOptions, Region, Uuid};
use std::collections::BTreeMap;
use std::ops::Range;

/// How many stray writes. 5,000 in a usual run; a release is checked with 1,000,000.
const WRITES: &str = "PM_STRAY_WRITES";
const REGION_BYTES: u64 = 1 << 17;

type HeapOn<'r> = Heap<&'r Region>;

/// Where blocks start, and what they hold.
type Blocks = BTreeMap<u64, Vec<u8>>;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(32).chunk_bytes(4096)
}

/// Knuth's linear congruential generator: the same campaign each time.
#[derive(Clone, Copy)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

fn alloc(heap: &HeapOn<'_>, contents: &[u8]) -> Result<u64, TxError> {
    heap.transaction(|tx| tx.alloc_slice(contents).map(Link::offset))
}

fn free(heap: &HeapOn<'_>, payload: u64) -> Result<(), TxError> {
    heap.transaction(|tx| tx.free(Link::<u8>::vouched(payload)))
}

/// Blocks of many lengths, one longer than a chunk, with holes between.
fn populate(region: &Region, random: &mut Random) -> Blocks {
    let heap = Heap::format(region, &options()).unwrap();
    let mut blocks = Blocks::new();
    for number in 0..120 {
        let len = if number == 40 { 7000 } else { 1 + random.below(700) };
        let contents = random.bytes(len);
        match alloc(&heap, &contents) {
            Ok(payload) => drop(blocks.insert(payload, contents)),
            Err(TxError::Space(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    blocks.retain(|payload, _| random.below(3) > 0 || free(&heap, *payload).is_err());
    blocks
}

/// Writes 1 to 256 random bytes: somewhere, or where a header is hit.
fn stray_write(region: &Region, blocks: &Blocks, random: &mut Random) -> Range<u64> {
    let at = if random.below(2) == 0 {
        let (payload, _) = blocks.iter().nth(random.index(blocks.len())).unwrap();
        payload - 8 + random.below(8)
    } else {
        random.below(REGION_BYTES)
    };
    let len = (1 + random.below(256)).min(REGION_BYTES - at);
    region.store(at, &random.bytes(len));
    at..at + len
}

fn headers(region: &Region, blocks: &Blocks) -> BTreeMap<u64, u64> {
    blocks.keys().map(|payload| (*payload, region.load_u64(payload - 8))).collect()
}

/// What no stray write hit is as it was.
fn untouched(region: &Region, blocks: &Blocks, stray: &[Range<u64>]) {
    for (payload, contents) in blocks {
        let mut found = vec![0; contents.len()];
        region.load(*payload, &mut found);
        for (at, (found, written)) in (*payload..).zip(found.iter().zip(contents)) {
            let hit = stray.iter().any(|range| range.contains(&at));
            assert!(hit || found == written, "byte {at:#x} of the block at {payload:#x} has changed");
        }
    }
}

/// Allocates and fills all that is still handed out: it overlaps no live block, and nothing that was handed out just now.
fn take_the_rest(heap: &HeapOn<'_>, live: &Blocks) -> Vec<u64> {
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

/// The heap is open all the while: it knows its blocks, and a stray write costs those whose headers it hit, and no others.
fn hit_while_open(region: &Region, heap: &HeapOn<'_>, blocks: &Blocks, hit: &[u64], stray: &[Range<u64>]) {
    let taken = take_the_rest(heap, blocks);
    untouched(region, blocks, stray);
    for payload in blocks.keys() {
        match free(heap, *payload) {
            Ok(()) => assert!(!hit.contains(payload), "{payload:#x} was freed, and its header is damaged"),
            Err(TxError::Free(FreeError::Damaged { offset, header_offset })) => {
                assert!(hit.contains(payload) && offset == *payload && header_offset == payload - 8);
            }
            Err(error) => panic!("{error}"),
        }
    }
    let damages = heap.take_damage();
    assert!(damages.iter().all(|damage| damage.kind != DamageKind::Resynchronized));
    for payload in hit {
        let told = |damage: &&Damage| damage.header_offset == payload - 8;
        assert_eq!(damages.iter().filter(told).count(), 1, "{payload:#x}");
    }
    for payload in taken {
        free(heap, payload).unwrap();
    }
}

/// The heap is opened after the writes: damaged headers are told, what they may have covered is not handed out, and what is
/// sound can be freed.
fn hit_while_closed(region: &Region, heap: &HeapOn<'_>, blocks: &Blocks, hit: &[u64], stray: &[Range<u64>]) {
    let report = heap.check();
    for payload in hit {
        let inside = |damage: &Damage| damage.extent.contains(payload);
        assert!(report.damages.iter().any(inside), "{payload:#x}: {report:x?}");
    }
    take_the_rest(heap, blocks);
    untouched(region, blocks, stray);
    for payload in blocks.keys() {
        let covered = || report.damages.iter().any(|damage| damage.extent.contains(payload));
        match free(heap, *payload) {
            Ok(()) => assert!(!hit.contains(payload), "{payload:#x} was freed, and its header is damaged"),
            Err(TxError::Free(FreeError::Damaged { .. } | FreeError::NotABlock { .. })) => assert!(covered()),
            Err(error) => panic!("{error}"),
        }
    }
    take_the_rest(heap, &Blocks::new());
}

fn round(region: &Region, image: &[u8], blocks: &Blocks, seed: u64, tally: &mut Tally) {
    let mut random = Random(seed);
    region.store(0, image);
    let before = headers(region, blocks);
    let mut write = || -> Vec<Range<u64>> {
        (0..=random.below(3)).map(|_| stray_write(region, blocks, &mut random)).collect()
    };
    let is_hit = |payload: &&u64| region.load_u64(**payload - 8) != before[*payload];
    let hit = || -> Vec<u64> { blocks.keys().filter(is_hit).copied().collect() };
    if seed.is_multiple_of(2) {
        let heap = Heap::attach(region, &options()).unwrap();
        heap.scan_ahead(usize::MAX);
        let stray = write();
        let hit = hit();
        tally.writes += stray.len() as u64;
        tally.headers_hit += hit.len() as u64;
        hit_while_open(region, &heap, blocks, &hit, &stray);
    } else {
        let stray = write();
        let hit = hit();
        tally.writes += stray.len() as u64;
        tally.headers_hit += hit.len() as u64;
        match Heap::attach(region, &options()) {
            Ok(heap) => hit_while_closed(region, &heap, blocks, &hit, &stray),
            // Several writes may hit both copies of what a heap cannot be opened without.
            Err(
                HeapError::Pool(_)
                | HeapError::NotAHeap
                | HeapError::Root(_)
                | HeapError::HeaderDamaged { .. }
                | HeapError::ChunkCountDamaged { .. }
                | HeapError::Recover(_),
            ) if stray.len() > 1 => {
                tally.not_opened += 1;
                untouched(region, blocks, &stray);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn stray_writes_cost_what_they_hit_and_are_found() {
    let wanted = std::env::var(WRITES).map_or(5_000, |count| count.parse().unwrap());
    let mut tally = Tally::default();
    let mut seed = 0;
    while tally.writes < wanted {
        let region = Region::anonymous(REGION_BYTES).unwrap();
        let blocks = populate(&region, &mut Random(seed));
        let mut image = vec![0; usize::try_from(REGION_BYTES).unwrap()];
        region.load(0, &mut image);
        for _ in 0..200 {
            seed += 1;
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                round(&region, &image, &blocks, seed, &mut tally);
            }));
            assert!(told.is_ok(), "in the round of seed {seed}");
        }
    }
    println!("{tally:?}");
    assert!(tally.headers_hit > wanted / 3, "{tally:?}");
}
