//! What is lost when one corrupted log entry is discarded, besides its own transaction.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod review_sim;

use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, TxError};
use pm_core::{Link, PoolOptions, Uuid};
use review_sim::{Sim, State};
use std::sync::{Arc, mpsc};

type SimHeap = Heap<Arc<Sim>>;
type Value = [u64; 20];
type Slot<'p> = Link<'p, Link<'p, Value>>;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(64).chunk_bytes(4096).in_place_from_bytes(256)
}

fn heap() -> SimHeap {
    let heap = Heap::format(Arc::new(Sim::new(1 << 16)), &options()).unwrap();
    heap.transaction(|tx| {
        let slots = tx.alloc_zeroed::<u64>(8)?;
        tx.set_root("slots", slots)?;
        let long = tx.alloc_zeroed::<[u64; 40]>(1)?;
        tx.set_root("long", long)?;
        let other = tx.alloc(&1_u64)?;
        tx.set_root("x", other)?;
        tx.set_root("a", other)
    })
    .map_err(|error: TxError| error)
    .unwrap();
    // Leaves a slot of the directory free in front of that of `a`.
    heap.transaction(|tx| tx.remove_root("x")).map_err(|error: TxError| error).unwrap();
    heap
}

fn slot(heap: &SimHeap, number: u64) -> u64 {
    heap.view(|view| view.root::<u64>("slots").unwrap().unwrap().offset()) + 8 * number
}

fn alloc_into(heap: &SimHeap, number: u64, value: u64) -> u64 {
    let slot = slot(heap, number);
    heap.view(|view| view.alloc_into(Slot::vouched(slot), &[value; 20]).unwrap().offset())
}

/// Runs `first` in lane 0, then `second`, by another thread, in lane 1, and closes nothing.
fn in_two_lanes(heap: &SimHeap, first: impl FnOnce(), second: impl FnOnce() + Send) {
    let (go, gone) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let second = heap
            .transaction(|tx| {
                // The lane is this transaction's from here on.
                let long = tx.root::<[u64; 40]>("long")?.unwrap();
                tx.write(long, &[1; 40])?;
                let (ready, is_ready) = mpsc::channel::<()>();
                let second = scope.spawn(move || {
                    let mark = |heap: &SimHeap| {
                        let slot = slot(heap, 7);
                        heap.transaction(|tx| tx.write(Link::<u64>::vouched(slot), &1))
                            .map_err(|error: TxError| error)
                            .unwrap();
                    };
                    mark(heap);
                    mark(heap);
                    ready.send(()).unwrap();
                    gone.recv().unwrap();
                    second();
                });
                is_ready.recv().unwrap();
                Ok::<_, TxError>(second)
            })
            .unwrap();
        heap.checkpoint().unwrap();
        first();
        go.send(()).unwrap();
        second.join().unwrap();
    });
}

fn lane(heap: &SimHeap, lane: u32) -> core::ops::Range<usize> {
    let layout = heap.layout();
    layout.entry_offset(lane, 0) as usize..layout.entry_offset(lane, layout.lane_entries - 1) as usize + 64
}

/// The lines of lane 0 that changed, and that lane 1 did not.
fn entries_of(before: &State, after: &State, ring: core::ops::Range<usize>) -> Vec<usize> {
    ring.step_by(64).filter(|at| before.durable[*at..at + 64] != after.durable[*at..at + 64]).collect()
}

/// What a power failure leaves after both, with the entry of the first one corrupted.
fn failed(heap: &SimHeap, first: impl FnOnce(), second: impl FnOnce() + Send) -> State {
    let sim = Arc::clone(heap.pool().pmem());
    let (mut before, mut after) = (State::default(), State::default());
    in_two_lanes(
        heap,
        || {
            before = sim.power_failure();
            first();
            after = sim.power_failure();
        },
        second,
    );
    let mine = entries_of(&before, &after, lane(heap, 0));
    assert!(!mine.is_empty(), "the first one committed in lane 0");
    assert!(entries_of(&after, &sim.power_failure(), lane(heap, 0)).is_empty(), "the second one did not");
    let mut left = sim.power_failure();
    for bytes in [&mut left.visible, &mut left.durable] {
        bytes[*mine.last().unwrap() + 20] ^= 4;
    }
    left
}

fn attach(left: &State, discard: bool) -> Result<SimHeap, HeapError> {
    Heap::attach(Arc::new(Sim::of(left.clone())), &options().discard_corrupted_records(discard))
}

#[test]
fn discarding_one_allocation_gives_no_block_of_another_transaction_away() {
    let heap = heap();
    let second = std::sync::Mutex::new(0);
    let left = failed(
        &heap,
        || assert_ne!(alloc_into(&heap, 0, 0xA), 0),
        || *second.lock().unwrap() = alloc_into(&heap, 1, 0xB),
    );
    let block = second.into_inner().unwrap();
    // With both entries intact both are there.
    assert!(matches!(attach(&left, false), Err(HeapError::Recover(RecoverError::Corrupted { .. }))));
    let heap = attach(&left, true).unwrap();
    assert_eq!(heap.opened().recovery.discarded_in_lanes, [0]);
    let slot = slot(&heap, 1);
    let read = |heap: &SimHeap| {
        heap.view(|view| {
            let link = view.read(Slot::vouched(slot)).unwrap();
            (link.offset(), view.read(link).unwrap())
        })
    };
    assert_eq!(
        read(&heap),
        (block, [0xB; 20]),
        "the second transaction was acknowledged, and none of its entries is corrupted"
    );
    assert!(heap.check().is_clean());
    let is_listed = heap.blocks().contains(&block);
    // A transaction that allocates as much as there is.
    let mut handed_out = vec![];
    let given_up = heap.transaction(|tx| {
        loop {
            let new = tx.alloc_slice(&[0xC_u64; 20])?.offset();
            handed_out.push(new..new + 160);
        }
        #[expect(unreachable_code, reason = "for the type")]
        Ok::<(), TxError>(())
    });
    assert!(given_up.is_err());
    let over: Vec<_> = handed_out.iter().filter(|new| new.start < block + 160 && block < new.end).collect();
    assert!(
        over.is_empty(),
        "{over:?} handed out over the block at {block}; listed as allocated: {is_listed}"
    );
    assert_eq!(read(&heap), (block, [0xB; 20]));
    assert!(is_listed);
}
