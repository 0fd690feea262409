//! Random programs on an unlogged heap, compared with a shadow model.

use super::programs::is_out_of_room;
use pm_alloc::{Heap, Piece, UnloggedError, UnloggedHeap, format::BlockState};
use pm_core::Pmem;
use pm_testkit::Rng;
use pm_testkit::{AnyPmem, SampledPmem};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) type Unlogged = UnloggedHeap<AnyPmem<'static>>;

/// The capacity in bytes and the number of each block, by offset.
pub(crate) type Shadow = BTreeMap<u64, (u64, u64)>;

pub(crate) fn fill(pmem: &SampledPmem, offset: u64, room: u64, id: u64, persists: bool) {
    let bytes: Vec<u8> = (0..room / 8).flat_map(|at| (id ^ at << 32).to_le_bytes()).collect();
    pmem.store(offset, &bytes);
    if persists {
        pmem.persist(offset, room).unwrap();
    }
}

pub(crate) fn check(pmem: &SampledPmem, offset: u64, room: u64, id: u64) {
    for at in 0..room / 8 {
        assert_eq!(
            pmem.load_u64(offset + 8 * at),
            id ^ at << 32,
            "word {at} of the block at {offset} with {room} bytes"
        );
    }
}

/// The capacity of each allocated block, by offset.
pub(crate) fn listed(heap: &Heap<AnyPmem<'static>>) -> BTreeMap<u64, u64> {
    let mut blocks = BTreeMap::new();
    let report = heap.check_with(|block| {
        if block.state == BlockState::Allocated {
            blocks.insert(block.payload, u64::from(block.lines) * 64 - 8);
        }
    });
    assert!(report.is_clean(), "{report:?}");
    blocks
}

/// A copy of the region, made from the pieces of the frozen heap as for a forked child.
pub(crate) fn copy(heap: &Unlogged) -> Arc<SampledPmem> {
    let sim = heap.heap().pool().pmem().sampled();
    let mut bytes = vec![0xEE_u8; sim.len_bytes() as usize];
    heap.freeze().pieces(|piece| match piece {
        Piece::Bytes(range) => sim.load(range.start, &mut bytes[range.start as usize..range.end as usize]),
        Piece::Word { offset, word } => {
            bytes[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes())
        }
        _ => unreachable!(),
    });
    let copy = Arc::new(SampledPmem::new(bytes.len() as u64));
    copy.store(0, &bytes);
    copy
}

/// Asserts that after a crash the blocks of `known` are allocated and have their contents. Each other allocated block must be that of an interrupted
/// operation, as it was before or after the operation. Returns the other blocks.
pub(crate) fn survivors(
    sim: &SampledPmem,
    found: &BTreeMap<u64, u64>,
    known: &Shadow,
    interrupted: &[Interrupted],
) -> Vec<(u64, u64)> {
    for (offset, (room, id)) in known {
        assert_eq!(found.get(offset), Some(room), "the block at {offset}, {interrupted:?}");
        check(sim, *offset, *room, *id);
    }
    let others = found.iter().filter(|block| !known.contains_key(block.0));
    others
        .map(|(&offset, &room)| {
            let may_leave =
                |operation: &&Interrupted| operation.offset == offset && operation.may_leave(room);
            let by: Vec<&Interrupted> = interrupted.iter().filter(may_leave).collect();
            assert!(!by.is_empty(), "{room} bytes are allocated at {offset}, {interrupted:?}");
            if let [Interrupted { before: Some((old, id)), after, .. }] = *by {
                // If the block was shrinking, a new header may lie inside it while its own header is still the old one.
                check(sim, offset, after.map_or(*old, |(new, _)| new.min(*old)), *id);
            }
            (offset, room)
        })
        .collect()
}

/// The operation at which a program is stopped: the offset of its block, and the block before and after the operation.
#[derive(Debug)]
pub(crate) struct Interrupted {
    offset: u64,
    before: Option<(u64, u64)>,
    after: Option<(u64, u64)>,
}

impl Interrupted {
    fn may_leave(&self, room: u64) -> bool {
        let is_after = self.after.is_some_and(|after| after.0 == room);
        is_after || self.before.is_none_or(|before| before.0 == room)
    }
}

/// The state of a program at the event at which it is stopped.
pub(crate) struct Stop {
    event: u64,
    found: Option<(Shadow, Interrupted)>,
}

impl Stop {
    pub(crate) fn at(event: u64) -> Self {
        Self { event, found: None }
    }

    pub(crate) fn step(
        &mut self,
        sim: &SampledPmem,
        shadow: &mut Shadow,
        step: impl FnOnce(&mut Shadow) -> u64,
    ) {
        let mut unchanged = shadow.clone();
        let offset = step(shadow);
        if self.found.is_none() && sim.events() > self.event {
            let (before, after) = (unchanged.remove(&offset), shadow.get(&offset).copied());
            self.found = Some((unchanged, Interrupted { offset, before, after }));
        }
    }

    /// The blocks that the interrupted operation did not change, and the operation. `None` if the program was not stopped.
    pub(crate) fn interrupted(self) -> Option<(Shadow, Interrupted)> {
        self.found
    }
}

/// One thread of a program.
pub(crate) struct Actor {
    pub(crate) rng: Rng,
    pub(crate) serial: u64,
    /// Whether the thread makes the contents of blocks durable.
    pub(crate) persists: bool,
    /// Whether no other thread allocates.
    pub(crate) is_alone: bool,
}

impl Actor {
    pub(crate) fn bytes(&mut self) -> u64 {
        match self.rng.below(8) {
            0 => self.rng.below(16_000),
            1 => 4096 * (1 + self.rng.below(4)) - 64 * self.rng.below(4) - 8 * self.rng.below(3),
            2 => self.rng.below(2000),
            _ => self.rng.below(400),
        }
    }

    pub(crate) fn random_block(&mut self, shadow: &Shadow) -> Option<u64> {
        (!shadow.is_empty()).then(|| {
            let nth = self.rng.below(shadow.len() as u64) as usize;
            *shadow.keys().nth(nth).unwrap()
        })
    }

    /// Adds a new block to the shadow, and fills it.
    pub(crate) fn allocated(&mut self, pmem: &SampledPmem, shadow: &mut Shadow, offset: u64, room: u64) {
        self.serial += 1;
        assert_apart(shadow, offset, room);
        shadow.insert(offset, (room, self.serial));
        fill(pmem, offset, room, self.serial, self.persists);
    }

    /// Executes one operation. Returns the offset of its block; 0 if there was no room.
    pub(crate) fn step(&mut self, heap: &Unlogged, shadow: &mut Shadow) -> u64 {
        let chosen = self.random_block(shadow);
        let pmem = heap.heap().pool().pmem().sampled();
        match (self.rng.below(10), chosen) {
            (0..=3, _) | (_, None) => {
                let align = [64, 64, 64, 64, 128, 512, 2048][self.rng.below(7) as usize];
                let bytes = self.bytes();
                match heap.alloc(bytes, align) {
                    Ok(offset) => {
                        assert!(offset.is_multiple_of(align));
                        let room = heap.usable_bytes(offset).unwrap();
                        assert!(room >= bytes);
                        self.allocated(pmem, shadow, offset, room);
                        offset
                    }
                    Err(UnloggedError::Space(error)) if is_out_of_room(&error) => 0,
                    Err(error) => panic!("{error:?}"),
                }
            }
            (4..=6, Some(offset)) => {
                let (room, id) = shadow.remove(&offset).unwrap();
                check(pmem, offset, room, id);
                heap.free(offset).unwrap();
                // Another thread may have allocated it again.
                assert!(!self.is_alone || heap.free(offset).is_err());
                offset
            }
            (_, Some(offset)) => {
                self.resize(heap, shadow, offset);
                offset
            }
        }
    }

    fn resize(&mut self, heap: &Unlogged, shadow: &mut Shadow, offset: u64) {
        let pmem = heap.heap().pool().pmem().sampled();
        let (room, id) = shadow.remove(&offset).unwrap();
        let (least, more) = (self.bytes(), self.bytes());
        let wanted = least..=least + if self.rng.one_in(2) { 0 } else { more };
        let found = heap.resize(offset, wanted.clone(), |_, _| true).unwrap();
        let now = heap.usable_bytes(offset).unwrap();
        match found {
            Some(found) => assert!(found == now && now >= *wanted.start(), "{found} {now} {wanted:?}"),
            None => assert_eq!(now, room),
        }
        check(pmem, offset, room.min(now), id);
        assert_apart(shadow, offset, now);
        shadow.insert(offset, (now, id));
        fill(pmem, offset, now, id, self.persists);
    }
}

fn assert_apart(shadow: &Shadow, offset: u64, room: u64) {
    for (other, block) in shadow {
        assert!(other + block.0 < offset || offset + room < *other, "{offset}+{room} over {other}+{block:?}");
    }
}
