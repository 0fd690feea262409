//! Crashes while the last free extent is trimmed for a transaction, and another transaction commits a block in the rest before the first transaction
//! ends. After each crash the chain is sound, no committed block is lost, and all free space can be allocated.

use super::prelude::*;
use pm_alloc::Tx;
use pm_alloc::format::BlockState;
use std::collections::BTreeMap;

const REGION_BYTES: u64 = 9 << 13;
const CHUNK_BYTES: u64 = 1 << 15;
/// A trim for the first transaction keeps this many lines of a new chunk.
const FIRST_PART_LINES: u64 = 64;

type SimTx<'p> = Tx<'p, AnyPmem<'static>>;

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(8).chunk_bytes(CHUNK_BYTES)
}

fn attach(pmem: &Arc<SimPmem>) -> SimHeap {
    Heap::attach(any(Arc::clone(pmem)), &options()).unwrap()
}

/// A heap of one chunk, with a block of `lines` lines that starts with three slots.
fn prepared(lines: u64) -> Image {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
    assert_eq!(heap.check().chunks.len(), 1);
    let slots = |tx: &mut SimTx<'_>| {
        let slots = tx.alloc_zeroed::<Link<'_, u64>>(8 * lines - 1)?;
        tx.set_root("slots", slots)
    };
    heap.transact(slots).unwrap();
    drop(heap);
    sim.to_image()
}

/// The value of each word in the block of a slot. It also overwrites former headers.
const fn filling(slot: u64) -> u64 {
    0x5555_0000 + slot
}

/// Links a slot to a new block in a transaction, and calls a function before the transaction commits.
fn link(heap: &SimHeap, slot: u64, lines: u64, before_commit: impl Fn()) {
    heap.transact(|tx| {
        let slots = tx.root::<Link<'_, u64>>("slots")?.unwrap();
        let words = usize::try_from(8 * lines - 1).unwrap();
        let block = tx.alloc_slice(&vec![filling(slot); words])?;
        before_commit();
        tx.write(slots.element(slot), &block)
    })
    .unwrap();
}

/// The slots that are not null. Checks that the chain is sound, and that no block is leaked or overwritten.
fn linked(heap: &SimHeap) -> Result<Vec<u64>, String> {
    let report = heap.check();
    if !report.is_clean() {
        return Err(format!("{:x?}", report.corruptions));
    }
    let mut words = BTreeMap::new();
    heap.check_with(|block| {
        if block.state == BlockState::Allocated {
            words.insert(block.payload, 8 * u64::from(block.lines) - 1);
        }
    });
    heap.view(|view| {
        let slots = view.root::<Link<'_, u64>>("slots").unwrap().unwrap();
        words.remove(&slots.offset()).ok_or("the slots are free")?;
        let mut linked = Vec::new();
        for slot in 0..3 {
            let block = view.read(slots.element(slot)).unwrap();
            if block.is_null() {
                continue;
            }
            let count = words.remove(&block.offset()).ok_or("a linked block is free")?;
            let is_filled = |word| view.read(block.element(word)).unwrap() == filling(slot);
            if !(0..count).all(is_filled) {
                return Err(format!("the block of slot {slot} was overwritten"));
            }
            linked.push(slot);
        }
        if words.is_empty() { Ok(linked) } else { Err(format!("leaked: {words:x?}")) }
    })
}

/// Allocates each free extent as one block.
fn fill(heap: &SimHeap) -> Result<(), String> {
    let mut extents: Vec<(u64, u64)> = Vec::new();
    heap.check_with(|block| {
        let (start, lines) = (block.payload, u64::from(block.lines));
        match extents.last_mut() {
            _ if block.state != BlockState::Free => {}
            Some(last) if last.0 + 64 * last.1 == start => last.1 += lines,
            _ => extents.push((start, lines)),
        }
    });
    extents.sort_by_key(|extent| core::cmp::Reverse(extent.1));
    for (_, lines) in extents {
        let block = heap.transaction(|tx| tx.alloc_uninit::<u8>(64 * lines - 8).map(drop));
        block.map_err(|error: TxError| error.to_string())?;
    }
    let report = heap.check();
    if report.is_clean() && report.free_bytes == 0 { Ok(()) } else { Err(format!("{report:x?}")) }
}

/// The last free extent when it is trimmed.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// One free block.
    One,
    /// Two free blocks.
    Two,
    /// Two free blocks, and a log entry stores the header of the first.
    Logged,
}

impl Shape {
    fn image(self) -> Image {
        prepared(if matches!(self, Self::One) { FIRST_PART_LINES } else { FIRST_PART_LINES / 2 })
    }

    /// Links slot 0 if the shape needs a log entry. Then a transaction for slot 1 trims the extent, and slot 2 is linked before it commits.
    fn run(self, heap: &SimHeap, done: &(impl Fn(u64) + Sync)) {
        if matches!(self, Self::Logged) {
            link(heap, 0, 10, || ());
            done(0);
        }
        let lines = if matches!(self, Self::One) { 3 } else { 40 };
        link(heap, 1, lines, || {
            // A fence covers the flushes of its own thread only.
            std::thread::scope(|scope| {
                scope.spawn(|| link(heap, 2, 5, || ()));
            });
            done(2);
        });
        done(1);
    }
}

fn check(crash: &Crash<u64>) -> Result<(), String> {
    let heap = attach(crash.pmem());
    let found = linked(&heap)?;
    crash.recovered();
    if let Some(lost) = crash.acked().iter().find(|slot| !found.contains(slot)) {
        return Err(format!("the block of slot {lost} is lost"));
    }
    fill(&heap)
}

fn explore(shape: Shape) {
    let image = shape.image();
    let operation = |run: &Run<u64>| shape.run(&attach(run.pmem()), &|slot| run.ack(slot));
    for model in [Model::Eadr, Model::Px86Line, Model::Page] {
        let exhaustive = || Explorer::new(model).choices_per_point(1 << 16).nested_choices_per_point(1 << 11);
        for explorer in [exhaustive().crashes(2), exhaustive().crashes(1).kills(1)] {
            let coverage =
                explorer.lints(lints().allow(Lint::UnpersistedRead)).check(&image, operation, check);
            assert!(coverage.is_exhaustive(), "{shape:?}, {model}: {coverage}");
        }
    }
}

#[test]
fn blocks_after_trim_of_one_free_block_survive() {
    explore(Shape::One);
}

#[test]
fn blocks_after_trim_of_two_free_blocks_survive() {
    explore(Shape::Two);
}

#[test]
fn blocks_after_trim_of_logged_free_block_survive() {
    explore(Shape::Logged);
}

/// The first process is killed at every point. The second process, which may find a trim that is visible and not durable, is crashed at every point.
#[test]
fn commits_after_trim_by_killed_process_survive() {
    for shape in [Shape::One, Shape::Two, Shape::Logged] {
        let first = |run: &Run<u64>| shape.run(&attach(run.pmem()), &|_| ());
        let second = |run: &Run<u64>| -> Result<(), String> {
            let heap = attach(run.pmem());
            let found = linked(&heap)?;
            for slot in (0..3).filter(|slot| !found.contains(slot)) {
                link(&heap, slot, 30, || ());
                run.ack(slot);
            }
            Ok(())
        };
        Explorer::new(Model::Px86Line)
            .crashes(1)
            .lints(lints().allow(Lint::UnpersistedRead))
            .check_restarted(&shape.image(), first, second, check);
    }
}

/// In each shape the extent has the expected number of free blocks, and is trimmed.
#[test]
fn every_shape_is_trimmed() {
    for shape in [Shape::One, Shape::Two, Shape::Logged] {
        let sim = Arc::new(SimPmem::from_image(&shape.image(), Model::Px86Line));
        let heap = attach(&sim);
        let free = |heap: &SimHeap| heap.check().free_blocks;
        let before = free(&heap);
        assert_eq!(before, if matches!(shape, Shape::One) { 1 } else { 2 });
        shape.run(&heap, &|_| ());
        assert_eq!(linked(&heap).unwrap().len(), if matches!(shape, Shape::Logged) { 3 } else { 2 });
        // The rests of the extents of slot 1 and slot 2, and the extent after both.
        assert_eq!(free(&heap), 3, "{shape:?}");
        drop(heap);
        assert_eq!(linked(&attach(&sim)).unwrap().len(), if matches!(shape, Shape::Logged) { 3 } else { 2 });
    }
}
