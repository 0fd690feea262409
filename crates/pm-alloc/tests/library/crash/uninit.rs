//! Uninitialized blocks that cover several free blocks, which are not joined first, are allocated and filled. Their contents overwrite the headers of
//! the former blocks. After any crash in many sequences, no block is leaked, no header is corrupted, and the contents of blocks are not overwritten.

use super::prelude::*;
use crate::discarding::Worker;
use std::collections::BTreeSet;
use std::sync::OnceLock;

const REGION_BYTES: u64 = 9 << 12;
const SLOTS: u64 = 12;

/// The number of a slot, and a number of lines: links the slot to a new block of that many lines if it is null, and frees its block otherwise.
type Step = (u64, u64);

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(8).chunk_bytes(4096).in_place_from_bytes(64)
}

fn attach(pmem: &Arc<SimPmem>) -> SimHeap {
    Heap::attach(any(Arc::clone(pmem)), &options()).unwrap()
}

fn prepared() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let sim = Arc::new(SimPmem::new(REGION_BYTES));
        let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
        let slots = |tx: &mut pm_alloc::Tx<'_, _>| {
            let slots = tx.alloc_zeroed::<Link<'_, u64>>(SLOTS)?;
            tx.set_root("slots", slots)?;
            let long = tx.alloc_zeroed::<[u64; 16]>(1)?;
            tx.set_root("long", long)
        };
        heap.transact(slots).unwrap();
        sim.to_image()
    })
}

fn run(heap: &SimHeap, (number, lines): Step) -> Result<(), TxError> {
    heap.view(|view| {
        let slot = view.root::<Link<'_, u64>>("slots")?.unwrap().element(number);
        if !view.read(slot)?.is_null() {
            return view.unlink_and_free(slot);
        }
        let block = view.alloc_uninit_and_link(slot, 8 * lines - 1)?;
        let pmem = heap.pool().pmem();
        former_headers(block.offset(), lines).for_each(|offset| pmem.store_u64(offset, !offset));
        if lines > 1 {
            pmem.persist(block.offset(), 64 * lines - 8)?;
        }
        Ok(())
    })
}

/// The offsets at which former headers may lie in a block of `lines` lines.
fn former_headers(block: u64, lines: u64) -> impl Iterator<Item = u64> {
    (1..lines).map(move |line| block + 64 * line - 8)
}

/// Runs the steps, every second one in another thread, which has another lane. If there is no room, a step changes nothing.
fn run_by_two(heap: &SimHeap, steps: &[Step], mut after_each: impl FnMut(usize)) {
    std::thread::scope(|scope| {
        let other = Worker::new(scope, heap);
        for (done, &step) in steps.iter().enumerate() {
            let there = || other.run(move |heap| run(heap, step).unwrap_or_default());
            match done {
                // This transaction owns the first lane, so the other thread acquires the second lane, and keeps using it.
                1 => heap
                    .transact(|tx| {
                        let long = tx.root::<[u64; 16]>("long")?.unwrap();
                        tx.write(long, &[1; 16])?;
                        there();
                        Ok(())
                    })
                    .unwrap(),
                _ if done % 2 == 0 => run(heap, step).unwrap_or_default(),
                _ => there(),
            }
            after_each(done + 1);
        }
    });
}

/// The block of each slot. Asserts that no block is leaked, and that no header is corrupted.
fn linked(heap: &SimHeap) -> Vec<u64> {
    assert_clean(heap);
    heap.view(|view| {
        let slots = view.root::<Link<'_, u64>>("slots").unwrap().unwrap();
        let links = (0..SLOTS).map(|number| view.read(slots.element(number)).unwrap());
        let links: Vec<u64> = links.map(|link| if link.is_null() { 0 } else { link.offset() }).collect();
        let linked = links.iter().copied().filter(|&link| link > 0);
        let long = view.root::<[u64; 16]>("long").unwrap().unwrap();
        let reachable: BTreeSet<u64> = linked.chain([slots.offset(), long.offset()]).collect();
        assert_eq!(heap.blocks().into_iter().collect::<BTreeSet<_>>(), reachable);
        links
    })
}

fn explore(steps: &[Step], seed: u64) {
    let image = prepared();
    // The block of each slot after each step, and the number of its filled lines.
    let expected: Vec<Vec<(u64, u64)>> = {
        let heap = attach(&Arc::new(SimPmem::from_image(image, Model::Px86Line)));
        let mut states = vec![vec![(0, 0); usize::try_from(SLOTS).unwrap()]];
        run_by_two(&heap, steps, |done| {
            let before = states.last().unwrap();
            let after = linked(&heap).into_iter().zip(before);
            let lines = steps[done - 1].1;
            states.push(after.map(|(link, old)| if link == old.0 { *old } else { (link, lines) }).collect());
        });
        states
    };
    let operation = |crashed: &Run<usize>| {
        let heap = attach(crashed.pmem());
        run_by_two(&heap, steps, |done| crashed.ack(done));
    };
    let check = |crash: &Crash<usize>| {
        let acked = crash.acked().last().copied().unwrap_or(0);
        let heap = attach(crash.pmem());
        let found = linked(&heap);
        for (&link, &(old, lines)) in found.iter().zip(&expected[acked]) {
            if link > 0 && link == old {
                let mut headers = former_headers(link, lines);
                let lost = headers.find(|&offset| crash.pmem().load_u64(offset) != !offset);
                assert_eq!(lost, None, "in the block of {lines} lines at {link}");
            }
        }
        let mut allowed = expected[acked..(acked + 2).min(expected.len())].iter();
        let is_allowed = allowed.any(|state| state.iter().map(|(link, _)| link).eq(&found));
        if is_allowed { Ok(()) } else { Err(format!("{found:?} after {acked} steps of {expected:?}")) }
    };
    let lints = lints().allow(Lint::UnpersistedRead);
    let explorer =
        Explorer::new(Model::Px86Line).seed(seed).crashes(1).choices_per_point(3).kills(1).lints(lints);
    explorer.check(image, operation, check);
}

/// Two threads take turns, each with its own lane. `PM_CRASH_SEQUENCES` is the number of sequences.
#[test]
fn uninit_blocks_over_several_free_blocks_survive_crashes() {
    let default = if crate::is_deep() { 20 } else { 6 };
    let count: u64 = std::env::var("PM_CRASH_SEQUENCES").map_or(default, |count| count.parse().unwrap());
    for seed in 0..count {
        let mut random = pm_testkit::Rng::of(seed);
        let steps: Vec<Step> = (0..60).map(|_| (random.below(SLOTS), 1 + random.below(12))).collect();
        explore(&steps, seed);
    }
}
