//! Discarding a corrupted log entry of an allocation costs no block of other transactions: programs in which headers
//! in place lead astray.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod sim;

use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, TxError};
use pm_core::{Link, Pmem, PoolOptions, Uuid};
use sim::{Sim, State};
use std::sync::{Arc, mpsc};

type SimHeap = Heap<Arc<Sim>>;
type Slot<'p> = Link<'p, Link<'p, u64>>;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(64).chunk_bytes(4096).in_place_from_bytes(256)
}

fn discarding() -> HeapOptions {
    options().discard_corrupted_records(true)
}

/// A heap with eight slots for links in the first two lines, and a long value in another chunk.
fn heap() -> SimHeap {
    let heap = Heap::format(Arc::new(Sim::new(64 << 10)), &options()).unwrap();
    let made = heap.transaction(|tx| {
        let slots = tx.alloc_zeroed::<u64>(8)?;
        tx.set_root("slots", slots)?;
        Ok(slots.offset())
    });
    let slots = made.map_err(|error: TxError| error).unwrap();
    assert_eq!(slots, heap.layout().first_payload(0));
    heap
}

fn slot<P: Pmem>(heap: &Heap<P>, number: u64) -> u64 {
    heap.view(|view| view.root::<u64>("slots").unwrap().unwrap().offset()) + 8 * number
}

/// Allocates a block of so many lines, unfilled, and links a slot to it. Returns the line in its chunk.
fn alloc<P: Pmem>(heap: &Heap<P>, number: u64, lines: u64) -> u64 {
    let slot = slot(heap, number);
    let at = heap.view(|view| view.alloc_unfilled_into(Slot::vouched(slot), 8 * lines - 1).unwrap().offset());
    line_of(heap, at)
}

fn line_of<P: Pmem>(heap: &Heap<P>, at: u64) -> u64 {
    (at - heap.layout().chunk_offset(0)) / 64
}

fn at_line<P: Pmem>(heap: &Heap<P>, line: u64) -> u64 {
    heap.layout().chunk_offset(0) + 64 * line
}

fn free<P: Pmem>(heap: &Heap<P>, number: u64) {
    let slot = slot(heap, number);
    heap.view(|view| view.free_from(Slot::vouched(slot)).unwrap());
}

/// Frees a block and makes it available: raises the horizon, and has an allocation look at the blocks that wait for it.
fn free_now<P: Pmem>(heap: &Heap<P>, number: u64) {
    free(heap, number);
    settle(heap);
}

fn settle<P: Pmem>(heap: &Heap<P>) {
    heap.checkpoint().unwrap();
    for _ in 0..8 {
        let given_up = heap.transaction(|tx| {
            tx.alloc_unfilled::<u64>(1)?;
            Err::<(), TxError>(TxError::Nested)
        });
        assert!(matches!(given_up, Err(TxError::Nested)));
    }
}

/// Allocates all that there is, one line after the other, and gives it back: which lines of the first chunk.
fn all_room<P: Pmem>(heap: &Heap<P>) -> Vec<u64> {
    let mut handed_out = Vec::new();
    let given_up = heap.transaction(|tx| {
        loop {
            handed_out.push(tx.alloc_unfilled::<u64>(1)?.offset());
        }
        #[expect(unreachable_code, reason = "for the type")]
        Ok::<(), TxError>(())
    });
    assert!(matches!(given_up, Err(TxError::Space(_) | TxError::Commit(_))), "{given_up:?}");
    handed_out.iter().map(|&at| line_of(heap, at)).collect()
}

fn entry_lines(heap: &SimHeap, lane: u32, before: &State, after: &State) -> Vec<usize> {
    let layout = heap.layout();
    let lines = (0..layout.lane_entries).map(|entry| layout.entry_offset(lane, entry) as usize);
    lines.filter(|&at| before.durable[at..at + 64] != after.durable[at..at + 64]).collect()
}

fn sim_of(bytes: Vec<u8>) -> Arc<Sim> {
    let mut state = State::default();
    (state.visible, state.durable) = (bytes.clone(), bytes);
    Arc::new(Sim::of(state))
}

/// One transaction T cuts block A off a free block. The power fails when A's header is in place on the medium (its
/// line was evicted), and that of the rest is not. T's entry is corrupted, and discarded. Where the rest begins lies
/// an old header of a former free block, which was longer: its lines have been Y's for long, allocated before the
/// heap was last opened.
#[test]
fn discarding_half_of_a_cut_does_not_hand_out_an_older_block() {
    let heap = heap();
    // Lines 3 to 33: P and Z; then G up to the end.
    assert_eq!([alloc(&heap, 0, 8), alloc(&heap, 1, 22), alloc(&heap, 2, 31)], [3, 11, 33]);
    free_now(&heap, 1);
    free_now(&heap, 0);
    // W lies over P and a part of Z, whose header stays inside of it; Y over the rest of Z.
    assert_eq!([alloc(&heap, 0, 20), alloc(&heap, 1, 10)], [3, 23]);
    let y = at_line(&heap, 23);
    let filled = heap.transaction(|tx| tx.write_slice(Link::<u64>::vouched(y), &[0x59; 20]));
    filled.map_err(|error: TxError| error).unwrap();
    free_now(&heap, 0);
    let sim = Arc::clone(heap.pool().pmem());
    heap.close().unwrap();

    // The next process: one allocation.
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    assert!(heap.check().is_clean());
    // All chunks are looked at, so that the shortest hole is taken.
    heap.scan_ahead(64).unwrap();
    settle(&heap);
    let before = sim.power_failure();
    assert_eq!(alloc(&heap, 0, 8), 3, "A");
    let state = sim.state();
    let mut bytes = state.durable.clone();
    // Of what is stored in place, A's header alone becomes durable by chance.
    let header = at_line(&heap, 3) as usize - 8;
    assert_ne!(bytes[header..header + 8], state.visible[header..header + 8], "it was not durable yet");
    bytes[header..header + 8].copy_from_slice(&state.visible[header..header + 8]);
    let entries: Vec<usize> =
        [0, 1].into_iter().flat_map(|lane| entry_lines(&heap, lane, &before, &sim.power_failure())).collect();
    assert_eq!(entries.len(), 1);
    core::mem::forget(heap);

    // Without corruption all is well.
    let heap = Heap::attach(sim_of(bytes.clone()), &options()).unwrap();
    assert!(heap.check().is_clean() && heap.blocks().contains(&y));
    assert!(all_room(&heap).iter().all(|line| !(23..33).contains(line)));
    drop(heap);

    bytes[entries[0] + 20] ^= 4;
    let refused = Heap::attach(sim_of(bytes.clone()), &options());
    assert!(matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. }))));
    let heap = Heap::attach(sim_of(bytes), &discarding()).unwrap();
    let listed: Vec<u64> = heap.blocks().iter().map(|&at| line_of(&heap, at)).collect();
    let link = heap.pool().pmem().load_u64(slot(&heap, 1));
    assert_eq!(link, y, "Y is in use");
    let over: Vec<u64> = all_room(&heap).into_iter().filter(|line| (23..33).contains(line)).collect();
    assert!(over.is_empty(), "lines {over:?} are handed out, and are Y's, 23..33; listed: {listed:?}");
    assert!(listed.contains(&23), "{listed:?}");
}

/// A block B was allocated, and freed as one with its free neighbours: B's own header stays in place, below theirs.
/// Then C and E were allocated there, and C freed. All entries of these are intact. Discarding the entry of a later
/// transaction, that wrote a word, takes B's header for that of a live block.
#[test]
fn discarding_the_write_of_a_word_does_not_hand_out_a_live_block() {
    let heap = heap();
    assert_eq!(
        [alloc(&heap, 0, 2), alloc(&heap, 1, 6), alloc(&heap, 2, 4), alloc(&heap, 3, 49)],
        [3, 5, 11, 15]
    );
    free_now(&heap, 0);
    free_now(&heap, 2);
    free_now(&heap, 1);
    assert_eq!([alloc(&heap, 4, 4), alloc(&heap, 5, 8)], [3, 7], "C and E");
    free_now(&heap, 4);
    let sim = Arc::clone(heap.pool().pmem());
    let before = sim.power_failure();
    let word = slot(&heap, 7);
    let written = heap.transaction(|tx| tx.write(Link::<u64>::vouched(word), &1));
    written.map_err(|error: TxError| error).unwrap();
    let after = sim.power_failure();
    let entries: Vec<usize> =
        [0, 1].into_iter().flat_map(|lane| entry_lines(&heap, lane, &before, &after)).collect();
    assert_eq!(entries.len(), 1);
    let mut bytes = after.durable;
    core::mem::forget(heap);

    let intact = Heap::attach(sim_of(bytes.clone()), &options()).unwrap();
    let lines = |heap: &SimHeap| -> Vec<u64> { heap.blocks().iter().map(|&at| line_of(heap, at)).collect() };
    assert_eq!(lines(&intact), [1, 7, 15]);
    drop(intact);

    bytes[entries[0] + 20] ^= 4;
    let heap = Heap::attach(sim_of(bytes), &discarding()).unwrap();
    let listed = lines(&heap);
    assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 5)), at_line(&heap, 7), "E is in use");
    let over: Vec<u64> = all_room(&heap).into_iter().filter(|line| (7..15).contains(line)).collect();
    assert!(over.is_empty(), "lines {over:?} are handed out, and are E's, 7..15; listed: {listed:?}");
    assert_eq!(listed, [1, 7, 15]);
}

/// Runs `first` in lane 0, then `second` in another thread and lane 1, and closes nothing.
fn in_two_lanes(heap: &SimHeap, long: u64, first: impl FnOnce(), second: impl FnOnce() + Send) {
    let (go, gone) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let second = heap.transaction(|tx| {
            tx.write(Link::vouched(long), &[1_u64; 40])?;
            let (ready, is_ready) = mpsc::channel::<()>();
            let second = scope.spawn(move || {
                let slot = slot(heap, 7);
                let write = |value: u64| heap.transaction(|tx| tx.write(Link::vouched(slot), &value));
                write(1).map_err(|error: TxError| error).unwrap();
                write(2).map_err(|error: TxError| error).unwrap();
                ready.send(()).unwrap();
                if gone.recv().is_ok() {
                    second();
                }
            });
            is_ready.recv().unwrap();
            Ok::<_, TxError>(second)
        });
        let second = second.unwrap();
        heap.checkpoint().unwrap();
        let go = go;
        first();
        go.send(()).unwrap();
        second.join().unwrap();
    });
}

/// T cuts A off a free block. Another transaction, in another lane, frees X behind the rest, as one with the rest.
/// T's entry is discarded: the freeing of X was acknowledged, and its entry is intact.
#[test]
fn discarding_an_allocation_leaves_blocks_freed_that_other_transactions_freed() {
    let heap = heap();
    // In another chunk, as it is too long for what is left of this one.
    assert_eq!(alloc(&heap, 3, 63), 65);
    let long = at_line(&heap, 65);
    // F, X and G.
    assert_eq!([alloc(&heap, 0, 12), alloc(&heap, 1, 2), alloc(&heap, 2, 47)], [3, 15, 17]);
    free_now(&heap, 0);
    let sim = Arc::clone(heap.pool().pmem());
    let (mut before, mut after) = (State::default(), State::default());
    let first = || {
        before = sim.power_failure();
        assert_eq!(alloc(&heap, 0, 8), 3, "A");
        after = sim.power_failure();
    };
    in_two_lanes(&heap, long, first, || free(&heap, 1));
    let entries = entry_lines(&heap, 0, &before, &after);
    assert_eq!(entries.len(), 1);
    let mut bytes = sim.power_failure().durable;
    let x = at_line(&heap, 15);
    core::mem::forget(heap);
    let intact = Heap::attach(sim_of(bytes.clone()), &options()).unwrap();
    assert!(!intact.blocks().contains(&x));
    drop(intact);

    bytes[entries[0] + 20] ^= 4;
    let heap = Heap::attach(sim_of(bytes), &discarding()).unwrap();
    assert_eq!(heap.opened().recovery.discarded_in_lanes, [0]);
    assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 1)), 0, "the transaction that freed X is there");
    assert!(!heap.blocks().contains(&x), "X is allocated again, and nothing links to it");
}

/// T allocates a block longer than a chunk. Another transaction, in another lane, allocates B behind its end. T's
/// entry is discarded: the header in front is that of the chunks made one free block, and covers B.
#[test]
fn discarding_a_block_longer_than_a_chunk_does_not_hand_out_what_lies_behind_it() {
    let heap = heap();
    let chunks = heap.check().chunks.len() as u64;
    // All chunks are full, but two in a row.
    assert_eq!(alloc(&heap, 3, 61), 3);
    assert_eq!([alloc(&heap, 4, 63), alloc(&heap, 0, 63), alloc(&heap, 1, 63)], [65, 129, 193]);
    for _ in 4..chunks {
        let filled = heap.transaction(|tx| tx.alloc_unfilled::<u64>(8 * 63 - 1).map(drop));
        filled.map_err(|error: TxError| error).unwrap();
    }
    free(&heap, 0);
    free(&heap, 1);
    heap.checkpoint().unwrap();
    let sim = Arc::clone(heap.pool().pmem());
    let (mut before, mut after, mut b) = (State::default(), State::default(), 0);
    let first = || {
        before = sim.power_failure();
        assert_eq!(alloc(&heap, 0, 70), 129);
        after = sim.power_failure();
    };
    in_two_lanes(&heap, at_line(&heap, 65), first, || b = alloc(&heap, 1, 10));
    assert_eq!(b, 129 + 70);
    let entries = entry_lines(&heap, 0, &before, &after);
    assert_eq!(entries.len(), 1);
    let mut bytes = sim.power_failure().durable;
    core::mem::forget(heap);
    let intact = Heap::attach(sim_of(bytes.clone()), &options()).unwrap();
    assert!(intact.blocks().contains(&at_line(&intact, b)));
    drop(intact);

    bytes[entries[0] + 20] ^= 4;
    let heap = Heap::attach(sim_of(bytes), &discarding()).unwrap();
    assert_eq!(heap.opened().recovery.discarded_in_lanes, [0]);
    assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 1)), at_line(&heap, b), "B is in use");
    let listed: Vec<u64> = heap.blocks().iter().map(|&at| line_of(&heap, at)).collect();
    let over: Vec<u64> = all_room(&heap).into_iter().filter(|line| (b..b + 10).contains(line)).collect();
    assert!(over.is_empty(), "lines {over:?} are handed out, and are B's, from {b} on; listed: {listed:?}");
    assert!(listed.contains(&b), "{listed:?}");
}

/// T cuts A off a free block. In another lane a transaction allocates C and B from the rest, one behind the other;
/// then C is freed. B's header lies in two entries, as the bytes before it are written by the same transaction. T's
/// entry is discarded.
#[test]
fn discarding_an_allocation_leaves_a_block_whose_header_lies_in_two_entries() {
    let heap = heap();
    assert_eq!(alloc(&heap, 3, 63), 65);
    let long = at_line(&heap, 65);
    assert_eq!([alloc(&heap, 0, 12), alloc(&heap, 2, 49)], [3, 15]);
    free_now(&heap, 0);
    let sim = Arc::clone(heap.pool().pmem());
    let (mut before, mut after, mut b) = (State::default(), State::default(), 0);
    let first = || {
        before = sim.power_failure();
        assert_eq!(alloc(&heap, 0, 8), 3, "A");
        after = sim.power_failure();
    };
    let second = || {
        let links = [slot(&heap, 1), slot(&heap, 4)];
        let allocated = heap.transaction(|tx| {
            let c = tx.alloc_unfilled::<u8>(120)?;
            tx.write_slice(c.element(76), &[0xCC_u8; 44])?;
            let b = tx.alloc(&[0xB_u64; 7])?;
            tx.write(Link::vouched(links[0]), &c.offset())?;
            tx.write(Link::vouched(links[1]), &b.offset())?;
            Ok(b.offset())
        });
        b = line_of(&heap, allocated.map_err(|error: TxError| error).unwrap());
        free(&heap, 1);
    };
    in_two_lanes(&heap, long, first, second);
    assert_eq!(b, 13);
    let entries = entry_lines(&heap, 0, &before, &after);
    assert_eq!(entries.len(), 1);
    let mut bytes = sim.power_failure().durable;
    core::mem::forget(heap);
    let intact = Heap::attach(sim_of(bytes.clone()), &options()).unwrap();
    assert!(intact.blocks().contains(&at_line(&intact, b)));
    drop(intact);

    bytes[entries[0] + 20] ^= 4;
    let heap = Heap::attach(sim_of(bytes), &discarding()).unwrap();
    assert_eq!(heap.opened().recovery.discarded_in_lanes, [0]);
    assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 4)), at_line(&heap, b), "B is in use");
    let listed: Vec<u64> = heap.blocks().iter().map(|&at| line_of(&heap, at)).collect();
    let over: Vec<u64> = all_room(&heap).into_iter().filter(|line| *line == b).collect();
    assert!(over.is_empty(), "lines {over:?} are handed out, and are B's; listed: {listed:?}");
    assert!(listed.contains(&b), "{listed:?}");
}
