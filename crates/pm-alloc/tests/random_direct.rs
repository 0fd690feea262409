//! Random programs on a heap without a log, against a shadow model: allocated, freed, made longer and shorter, copied as for a fork, and
//! killed or without power at a random event. As many as `PM_CRASH_SEQUENCES` says, from the seed `PM_CRASH_FIRST` on.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod sim;

use pm_alloc::{DirectError, DirectHeap, Heap, HeapOptions, Piece, SpaceError, format::BlockState};
use pm_core::{Pmem, PoolOptions, Uuid};
use sim::{Rng, Sim, State, crash, seeds};
use std::collections::BTreeMap;
use std::sync::Arc;

type Direct = DirectHeap<Arc<Sim>>;

/// Room and number of each block.
type Shadow = BTreeMap<u64, (u64, u64)>;

fn fill(heap: &Direct, offset: u64, room: u64, id: u64, durable: bool) {
    let pmem = heap.heap().pool().pmem();
    let bytes: Vec<u8> = (0..room / 8).flat_map(|at| (id ^ at << 32).to_le_bytes()).collect();
    pmem.store(offset, &bytes);
    if durable {
        pmem.persist(offset, room).unwrap();
    }
}

fn check(pmem: &Sim, offset: u64, room: u64, id: u64) {
    for at in 0..room / 8 {
        assert_eq!(
            pmem.load_u64(offset + 8 * at),
            id ^ at << 32,
            "word {at} of the block at {offset} with {room} bytes"
        );
    }
}

fn listed(heap: &Heap<Arc<Sim>>) -> BTreeMap<u64, u64> {
    let mut blocks = BTreeMap::new();
    let report = heap.check_with(|block| {
        if block.state == BlockState::Allocated {
            blocks.insert(block.payload, u64::from(block.lines) * 64 - 8);
        }
    });
    assert!(report.is_clean(), "{report:?}");
    blocks
}

fn copied(heap: &Direct, options: &HeapOptions, shadow: &Shadow) {
    let sim = heap.heap().pool().pmem();
    let mut bytes = vec![0xEE_u8; sim.len_bytes() as usize];
    heap.freeze().pieces(|piece| match piece {
        Piece::Bytes(range) => sim.load(range.start, &mut bytes[range.start as usize..range.end as usize]),
        Piece::Word(offset, word) => {
            bytes[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes())
        }
        _ => unreachable!(),
    });
    let copy = Arc::new(Sim::new(bytes.len() as u64));
    copy.store(0, &bytes);
    let heap = Heap::attach(Arc::clone(&copy), options).unwrap();
    let expected: BTreeMap<u64, u64> = shadow.iter().map(|(offset, block)| (*offset, block.0)).collect();
    assert_eq!(listed(&heap), expected);
    shadow.iter().for_each(|(offset, (room, id))| check(&copy, *offset, *room, *id));
}

struct World {
    rng: Rng,
    serial: u64,
}

impl World {
    fn bytes(&mut self) -> u64 {
        match self.rng.below(8) {
            0 => self.rng.below(9000),
            1 => 4096 * (1 + self.rng.below(4)) - 64 * self.rng.below(4) - 8 * self.rng.below(3),
            2 => self.rng.below(2000),
            _ => self.rng.below(400),
        }
    }

    /// What it did, and which block it was about.
    fn step(&mut self, heap: &Direct, shadow: &mut Shadow, durable: bool) -> (&'static str, u64) {
        let chosen = (!shadow.is_empty()).then(|| {
            let nth = self.rng.below(shadow.len() as u64) as usize;
            *shadow.keys().nth(nth).unwrap()
        });
        match (self.rng.below(10), chosen) {
            (0..=3, _) | (_, None) => {
                let align = [64, 64, 64, 64, 128, 512, 2048][self.rng.below(7) as usize];
                let bytes = self.bytes();
                match heap.alloc(bytes, align) {
                    Ok(offset) => {
                        assert!(offset.is_multiple_of(align));
                        let room = heap.usable_bytes(offset).unwrap();
                        assert!(room >= bytes);
                        self.serial += 1;
                        for (other, block) in shadow.iter() {
                            assert!(
                                other + block.0 < offset || offset + room < *other,
                                "{offset}+{room} over {other}+{block:?}"
                            );
                        }
                        shadow.insert(offset, (room, self.serial));
                        fill(heap, offset, room, self.serial, durable);
                        ("alloc", offset)
                    }
                    Err(DirectError::Space(
                        SpaceError::Full { .. } | SpaceError::TooLong { .. } | SpaceError::Alignment { .. },
                    )) => ("full", 0),
                    Err(error) => panic!("{error:?}"),
                }
            }
            (4..=6, Some(offset)) => {
                let (room, id) = shadow.remove(&offset).unwrap();
                check(heap.heap().pool().pmem(), offset, room, id);
                heap.free(offset).unwrap();
                assert!(heap.free(offset).is_err());
                ("free", offset)
            }
            (_, Some(offset)) => {
                let (room, id) = shadow[&offset];
                let (least, more) = (self.bytes(), self.bytes());
                let wanted = least..=least + if self.rng.one_in(2) { 0 } else { more };
                let found = heap.resize(offset, wanted.clone(), |_, _| true).unwrap();
                let now = heap.usable_bytes(offset).unwrap();
                match found {
                    Some(found) => {
                        assert!(found == now && now >= *wanted.start(), "{found} {now} {wanted:?}")
                    }
                    None => assert_eq!(now, room),
                }
                check(heap.heap().pool().pmem(), offset, room.min(now), id);
                for (other, block) in shadow.iter().filter(|other| *other.0 != offset) {
                    assert!(
                        other + block.0 < offset || offset + now < *other,
                        "{offset}+{now} over {other}+{block:?}"
                    );
                }
                shadow.insert(offset, (now, id));
                fill(heap, offset, now, id, durable);
                ("resize", offset)
            }
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::of(seed);
    let durable = rng.one_in(2);
    let chunk_bytes = [4096, 8192][rng.below(2) as usize];
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let options = HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(8).chunk_bytes(chunk_bytes);
    let sim = Arc::new(Sim::new([64, 100, 160][rng.below(3) as usize] << 10));
    let mut heap = DirectHeap::new(Heap::format(sim, &options).unwrap()).durable(durable);
    let mut world = World { rng, serial: 0 };
    let mut shadow = Shadow::new();
    for _ in 0..8 {
        for _ in 0..1 + world.rng.below(30) {
            world.step(&heap, &mut shadow, durable);
            if world.rng.one_in(10) {
                copied(&heap, &options, &shadow);
            }
        }
        let sim = Arc::clone(heap.heap().pool().pmem());
        let stop = sim.events() + world.rng.below(20);
        sim.stop_at(stop);
        let (mut before, mut about) = (shadow.clone(), ("", 0));
        while sim.events() <= stop {
            before = shadow.clone();
            about = world.step(&heap, &mut shadow, durable);
        }
        let stopped: State = sim.stopped().unwrap();
        drop(heap);
        let left = if durable && world.rng.one_in(2) { crash(&stopped, &mut world.rng) } else { stopped };
        let sim = Arc::new(Sim::of(left));
        let opened = Heap::attach(Arc::clone(&sim), &options).unwrap();
        // A call that was not acknowledged may be undone by a power failure later, where nothing relies on it.
        opened.scan_ahead(1 << 20).unwrap();
        let found = listed(&opened);
        let mut now = Shadow::new();
        for (offset, room) in &found {
            let known = before.get(offset);
            assert!(known.is_some() || *offset == about.1, "seed {seed}, {about:?}: {offset} is allocated");
            if *offset != about.1 {
                assert_eq!(known.unwrap().0, *room, "seed {seed}, {about:?}: the block at {offset}");
                check(&sim, *offset, *room, known.unwrap().1);
                now.insert(*offset, *known.unwrap());
            } else if let Some((old, id)) = known {
                let new = shadow.get(offset).map_or(*old, |block| block.0);
                assert!(*room == *old || *room == new, "seed {seed}, {about:?}: {room} of {old} or {new}");
                check(&sim, *offset, *old.min(&new), *id);
                now.insert(*offset, (*room, *id));
            } else {
                now.insert(*offset, (*room, u64::MAX));
            }
        }
        for (offset, _) in before.iter().filter(|block| *block.0 != about.1) {
            assert!(found.contains_key(offset), "seed {seed}, {about:?}: the block at {offset} is lost");
        }
        shadow = now;
        heap = DirectHeap::new(opened).durable(durable);
        let ids: Vec<(u64, u64)> = shadow.iter().map(|(offset, block)| (*offset, block.0)).collect();
        for (offset, room) in ids {
            world.serial += 1;
            shadow.insert(offset, (room, world.serial));
            fill(&heap, offset, room, world.serial, durable);
        }
    }
}

#[test]
fn random_programs_without_a_log_survive_kills_and_power_failures() {
    seeds(15).for_each(run);
}
