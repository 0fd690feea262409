//! Discarding the corrupted entry of one transaction, and its effect on others.

use super::prelude::*;
use crate::discarding::{entry_lines, free_payloads, in_two_lanes, slot};
use crate::sim::SimHeap;
use pm_testkit::{SampledPmem, State};

type Value = [u64; 20];

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(32).chunk_bytes(4096).in_place_from_bytes(256)
}

fn discarding() -> HeapOptions {
    options().discard_corrupted_records(true)
}

/// A heap with eight slots for links, and the offset of a long value.
fn heap() -> (SimHeap, u64) {
    let heap = Heap::format(any(Arc::new(SampledPmem::new(40 << 10))), &options()).unwrap();
    let made = heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(8)?;
        tx.set_root("slots", slots)?;
        let long = tx.alloc_zeroed::<[u64; 40]>(1)?;
        tx.set_root("long", long)?;
        Ok(long.offset())
    });
    let long = made.unwrap();
    (heap, long)
}

fn alloc_and_link(heap: &SimHeap, number: u64, value: u64) -> u64 {
    heap.view(|view| view.alloc_and_link(link_to(slot(heap, number)), &[value; 20]).unwrap().offset())
}

/// The image that a power failure leaves after both operations, with the last entry of `first` corrupted, and the result of `second`.
fn failed<R: Send + 'static>(
    first: impl FnOnce(&SimHeap),
    second: impl FnOnce(&SimHeap) -> R + Send + 'static,
) -> (Image, R) {
    let (heap, long) = heap();
    let sim = heap.pool().pmem().sampled();
    let lane_1 = heap.layout().lane_offset(1) as usize;
    let mut after = State::default();
    let first = || {
        first(&heap);
        after = sim.power_failure();
    };
    let (entries, result) = in_two_lanes(&heap, long, first, second);
    let left = sim.power_failure();
    let later = entry_lines(&heap, &after, &left);
    assert!(later.iter().all(|&line| line >= lane_1), "`second` does not commit in lane 0");
    let entry = entries.iter().rfind(|&&line| line < lane_1).expect("`first` commits in lane 0");
    let mut bytes = left.durable;
    bytes[entry + 20] ^= 4;
    (Image::from_bytes(bytes), result)
}

/// A transaction in another lane allocates blocks from the rest of the free block that the discarded allocation has split.
#[test]
fn discarded_allocation_keeps_blocks_of_other_transactions() {
    // Two blocks, so that the second lies after a header that is only in the log.
    let second = |heap: &SimHeap| [1, 2].map(|number| alloc_and_link(heap, number, 0xB));
    let (left, blocks) = failed(|heap| assert_ne!(alloc_and_link(heap, 0, 0xA), 0), second);
    let check = |crash: &Crash<()>| {
        let pmem = Arc::clone(crash.pmem());
        if crash.acked().is_empty() {
            let refused = Heap::attach(any(Arc::clone(&pmem)), &options());
            let is_refused = matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. })));
            // An open without discarding succeeds only once the entries are dead. Then the split is durable.
            assert!(is_refused || refused.is_ok());
        }
        let heap = Heap::attach(any(pmem), &discarding()).map_err(|error| error.to_string())?;
        for (slot_number, block) in [(1, blocks[0]), (2, blocks[1])] {
            let slot = slot(&heap, slot_number);
            let found = heap.view(|view| {
                let link: Link<'_, Value> = view.read(link_to(slot)).unwrap();
                (link.offset(), view.read(link).unwrap())
            });
            assert_eq!(found, (block, [0xB; 20]));
        }
        if !heap.check().is_clean() {
            return Err(format!("{:?}", heap.check()));
        }
        let listed = heap.blocks();
        let is_over = |at: &u64| blocks.iter().any(|&block| *at < block + 160 && block < at + 8);
        match free_payloads(&heap).into_iter().find(is_over) {
            Some(at) => Err(format!("{at} is free, inside a block of {blocks:?}")),
            None if !blocks.iter().all(|block| listed.contains(block)) => Err(format!("{listed:?}")),
            None => Ok(()),
        }
    };
    let operation = |run: &Run<()>| {
        let heap = Heap::attach(any(Arc::clone(run.pmem())), &discarding()).unwrap();
        assert_eq!(heap.open_report().recovery.discarded_in_lanes, [0]);
        run.ack(());
        // The process ends without closing the heap.
        core::mem::forget(heap);
    };
    let coverage = Explorer::new(Model::Px86Line).kills(1).check(&left, operation, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    println!("{coverage}");
}
