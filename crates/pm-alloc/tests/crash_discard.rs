//! Discarding the corrupted entry of one transaction, and its effect on others.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod harness;
mod links;
mod sim;

use harness::Transact as _;
use links::link_to;
use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, TxError};
use pm_core::{Link, Pmem};
use pm_crashsim::{Crash, Explorer, Image, Model, Run};
use sim::{Sim, State};
use std::sync::{Arc, mpsc};

type SimHeap = Heap<Arc<Sim>>;
type Value = [u64; 20];

fn options() -> HeapOptions {
    harness::options().lanes(2).lane_entries(32).chunk_bytes(4096).in_place_from_bytes(256)
}

fn discarding() -> HeapOptions {
    options().discard_corrupted_records(true)
}

/// A heap with eight slots for links, and a long value.
fn heap() -> SimHeap {
    let heap = Heap::format(Arc::new(Sim::new(40 << 10)), &options()).unwrap();
    heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(8)?;
        tx.set_root("slots", slots)?;
        let long = tx.alloc_zeroed::<[u64; 40]>(1)?;
        tx.set_root("long", long)
    })
    .unwrap();
    heap
}

fn slot<P: Pmem>(heap: &Heap<P>, number: u64) -> u64 {
    heap.view(|view| view.root::<u64>("slots").unwrap().unwrap().offset()) + 8 * number
}

fn alloc_and_link(heap: &SimHeap, number: u64, value: u64) -> u64 {
    let slot = slot(heap, number);
    heap.view(|view| view.alloc_and_link(link_to(slot), &[value; 20]).unwrap().offset())
}

/// Runs `first` in lane 0, then `second` in another thread and lane 1, and leaves the heap open.
fn in_two_lanes(heap: &SimHeap, first: impl FnOnce(), second: impl FnOnce() + Send) {
    let (go, gone) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let second = heap.transaction(|tx| {
            // This transaction holds its lane from here on, so the other thread gets the other lane, and keeps using it.
            let long = tx.root::<[u64; 40]>("long")?.unwrap();
            tx.write(long, &[1; 40])?;
            let (ready, is_ready) = mpsc::channel::<()>();
            let second = scope.spawn(move || {
                let slot = slot(heap, 7);
                let write = |value: u64| heap.transaction(|tx| tx.write(link_to(slot), &value));
                write(1).map_err(|error: TxError| error).unwrap();
                write(2).map_err(|error: TxError| error).unwrap();
                ready.send(()).unwrap();
                gone.recv().unwrap();
                second();
            });
            is_ready.recv().unwrap();
            Ok::<_, TxError>(second)
        });
        let second = second.unwrap();
        heap.checkpoint().unwrap();
        first();
        go.send(()).unwrap();
        second.join().unwrap();
    });
}

/// The lines of lane 0 that changed.
fn entries_in_lane_0(heap: &SimHeap, before: &State, after: &State) -> Vec<usize> {
    let layout = heap.layout();
    let lines = (0..layout.lane_entries).map(|entry| usize::try_from(layout.entry_offset(0, entry)).unwrap());
    lines.filter(|&at| before.durable[at..at + 64] != after.durable[at..at + 64]).collect()
}

/// What a power failure leaves after both, with the last entry of the first one corrupted.
fn failed(heap: &SimHeap, first: impl FnOnce(), second: impl FnOnce() + Send) -> Image {
    let sim = Arc::clone(heap.pool().pmem());
    let (mut before, mut after) = (State::default(), State::default());
    let first = || {
        before = sim.power_failure();
        first();
        after = sim.power_failure();
    };
    in_two_lanes(heap, first, second);
    let left = sim.power_failure();
    let entries = entries_in_lane_0(heap, &before, &after);
    assert!(entries_in_lane_0(heap, &after, &left).is_empty(), "the second one did not commit in lane 0");
    let mut bytes = left.durable;
    bytes[entries.last().expect("the first one committed in lane 0") + 20] ^= 4;
    Image::from_bytes(bytes)
}

/// Allocates all free space, and rolls back. Returns offset and length of each block.
fn all_room<P: Pmem>(heap: &Heap<P>) -> Vec<(u64, u64)> {
    let mut handed_out = Vec::new();
    let given_up = heap.transaction(|tx| {
        loop {
            handed_out.push((tx.alloc_slice(&[0xC_u64])?.offset(), 8));
        }
        #[expect(unreachable_code, reason = "for the type")]
        Ok::<(), TxError>(())
    });
    assert!(matches!(given_up, Err(TxError::Space(_))), "{given_up:?}");
    handed_out
}

/// A transaction in another lane allocates a block from the rest of the extent that the discarded one has split.
#[test]
fn discarded_allocation_keeps_blocks_of_other_transactions() {
    let heap = heap();
    let mut blocks = [0; 2];
    // Two, so that the second one lies behind a header that is only in the log.
    let second = || blocks = [alloc_and_link(&heap, 1, 0xB), alloc_and_link(&heap, 2, 0xB)];
    let left = failed(&heap, || assert_ne!(alloc_and_link(&heap, 0, 0xA), 0), second);
    let check = |crash: &Crash<()>| {
        let pmem = Arc::clone(crash.pmem());
        if crash.acked().is_empty() {
            let refused = Heap::attach(Arc::clone(&pmem), &options());
            let is_refused = matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. })));
            // Once the entries are dead, the split is durable.
            assert!(is_refused || refused.is_ok());
        }
        let heap = Heap::attach(pmem, &discarding()).map_err(|error| error.to_string())?;
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
        let over = all_room(&heap)
            .into_iter()
            .find(|new| blocks.iter().any(|&block| new.0 < block + 160 && block < new.0 + new.1));
        match over {
            Some(new) => Err(format!("{new:?} is handed out over a block of {blocks:?}")),
            None if !blocks.iter().all(|block| listed.contains(block)) => Err(format!("{listed:?}")),
            None => Ok(()),
        }
    };
    let operation = |run: &Run<()>| {
        let heap = Heap::attach(Arc::clone(run.pmem()), &discarding()).unwrap();
        assert_eq!(heap.open_report().recovery.discarded_in_lanes, [0]);
        run.ack(());
        // The heap is not closed.
        core::mem::forget(heap);
    };
    let coverage = Explorer::new(Model::Px86Line).kills(1).check(&left, operation, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    println!("{coverage}");
}
