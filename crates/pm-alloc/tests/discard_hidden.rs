//! Discarding a corrupted log entry costs no block of other transactions, where something else hides them: a second
//! corrupted line, contents that look like a header, or a recovery that a power failure stopped.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod sim;

use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, TxError};
use pm_core::{Link, Pmem, PoolOptions, Uuid};
use sim::{Rng, Sim, State, crash};
use std::sync::{Arc, mpsc};

type SimHeap = Heap<Arc<Sim>>;
type Slot<'p> = Link<'p, Link<'p, u64>>;

const ENTRIES: u32 = 16;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new()
        .pool(pool)
        .seed(7)
        .lanes(2)
        .lane_entries(ENTRIES)
        .chunk_bytes(4096)
        .in_place_from_bytes(256)
}

fn discarding() -> HeapOptions {
    options().discard_corrupted_records(true)
}

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
    heap.layout().first_payload(0) + 8 * number
}

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

fn free_now<P: Pmem>(heap: &Heap<P>, number: u64) {
    let slot = slot(heap, number);
    heap.view(|view| view.free_from(Slot::vouched(slot)).unwrap());
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

fn write_word<P: Pmem>(heap: &Heap<P>, at: u64, word: u64) {
    heap.transaction(|tx| tx.write(Link::<u64>::vouched(at), &word)).map_err(|error: TxError| error).unwrap();
}

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

fn entry_lines(heap: &SimHeap, before: &State, after: &State) -> Vec<usize> {
    let layout = heap.layout();
    let lanes = (0..2).flat_map(|lane| (0..ENTRIES).map(move |entry| (lane, entry)));
    let lines = lanes.map(|(lane, entry)| layout.entry_offset(lane, entry) as usize);
    lines.filter(|&at| before.durable[at..at + 64] != after.durable[at..at + 64]).collect()
}

fn sim_of(bytes: Vec<u8>) -> Arc<Sim> {
    let mut state = State::default();
    (state.visible, state.durable) = (bytes.clone(), bytes);
    Arc::new(Sim::of(state))
}

/// Another thread, which has the other lane, runs what it is given, one after the other.
fn with_other<R>(heap: &SimHeap, run: impl FnOnce(&dyn Fn(Box<dyn FnOnce(&SimHeap) + Send>)) -> R) -> R {
    std::thread::scope(|scope| {
        let (give, jobs) = mpsc::channel::<Box<dyn FnOnce(&SimHeap) + Send>>();
        let (finish, finished) = mpsc::channel();
        scope.spawn(move || {
            for job in jobs {
                job(heap);
                finish.send(()).unwrap();
            }
        });
        let other = |job: Box<dyn FnOnce(&SimHeap) + Send>| {
            give.send(job).unwrap();
            finished.recv().unwrap();
        };
        let block = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc_zeroed::<u64>(40)?.offset())).unwrap();
        let taken = heap.transaction(|tx| {
            tx.write(Link::vouched(block), &[1_u64; 40])?;
            other(Box::new(|heap| write_word(heap, slot(heap, 7), 0)));
            tx.free(Link::<u64>::vouched(block))
        });
        taken.map_err(|error: TxError| error).unwrap();
        heap.checkpoint().unwrap();
        settle(heap);
        let result = run(&other);
        drop(give);
        result
    })
}

/// T rests in lane 0. Lane 1 has gone around once: its dead entry is from before T, the next one allocated W in T's rest.
/// T's entry is corrupted, and that dead one.
#[test]
fn dead_corrupted_entry_of_another_lane_does_not_hide_a_block() {
    let heap = heap();
    let sim = Arc::clone(heap.pool().pmem());
    let state = || sim.power_failure();
    let (send, w) = mpsc::channel();
    let (mut t, mut dead, mut a) = (vec![], vec![], 0);
    with_other(&heap, |other| {
        let before = state();
        other(Box::new(|heap| write_word(heap, slot(heap, 7), 1)));
        dead = entry_lines(&heap, &before, &state());
        let before = state();
        a = alloc(&heap, 1, 4);
        t = entry_lines(&heap, &before, &state());
        other(Box::new(move |heap| {
            send.send(alloc(heap, 2, 4)).unwrap();
            (2..u64::from(ENTRIES)).for_each(|number| write_word(heap, slot(heap, 7), number));
        }));
    });
    let w = w.recv().unwrap();
    assert_eq!((w, t.len(), dead.len()), (a + 4, 1, 1));
    let bytes = state().durable;
    core::mem::forget(heap);
    let corrupted = |lines: &[usize]| {
        let mut bytes = bytes.clone();
        lines.iter().for_each(|line| bytes[line + 20] ^= 4);
        sim_of(bytes)
    };
    for lines in [vec![t[0]], vec![t[0], dead[0]]] {
        let refused = Heap::attach(corrupted(&lines), &options());
        assert!(matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. }))));
        let heap = Heap::attach(corrupted(&lines), &discarding()).unwrap();
        let listed: Vec<u64> = heap.blocks().iter().map(|&at| line_of(&heap, at)).collect();
        assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 2)), at_line(&heap, w), "W is in use");
        let over: Vec<u64> = all_room(&heap).into_iter().filter(|line| (w..w + 4).contains(line)).collect();
        assert!(over.is_empty(), "{} lost: {over:?} are handed out, and are W's; {listed:?}", lines.len());
        assert!(listed.contains(&w), "{listed:?}");
    }
}

/// Inside of an unfilled block B lies the header of a former free block, which went up to the end of the chunk. T
/// allocates behind B, then W is allocated in T's rest. Another transaction writes that word of B as it is: the bytes of
/// a user look like a header, and nothing is written beside it. T's entry is discarded.
#[test]
fn rewritten_word_that_looks_like_a_header_does_not_hide_a_block() {
    let heap = heap();
    assert_eq!(alloc(&heap, 0, 5), 3);
    free_now(&heap, 0);
    assert_eq!(alloc(&heap, 0, 10), 3, "B");
    let sim = Arc::clone(heap.pool().pmem());
    heap.close().unwrap();
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    heap.scan_ahead(64).unwrap();
    let (mut a, w) = (0, mpsc::channel());
    let (mut before, mut after) = (State::default(), State::default());
    let send = w.0;
    with_other(&heap, |other| {
        before = sim.power_failure();
        a = alloc(&heap, 1, 4);
        after = sim.power_failure();
        other(Box::new(move |heap| {
            send.send(alloc(heap, 2, 4)).unwrap();
            let at = at_line(heap, 8) - 8;
            write_word(heap, at, heap.pool().pmem().load_u64(at));
        }));
    });
    let w = w.1.recv().unwrap();
    let entries = entry_lines(&heap, &before, &after);
    assert_eq!((a, w, entries.len()), (13, 17, 1));
    let mut bytes = sim.power_failure().durable;
    core::mem::forget(heap);
    bytes[entries[0] + 20] ^= 4;
    let refused = Heap::attach(sim_of(bytes.clone()), &options());
    assert!(matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. }))));
    let heap = Heap::attach(sim_of(bytes), &discarding()).unwrap();
    let listed: Vec<u64> = heap.blocks().iter().map(|&at| line_of(&heap, at)).collect();
    assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 2)), at_line(&heap, 17), "W is in use");
    let over: Vec<u64> = all_room(&heap).into_iter().filter(|line| (17..21).contains(line)).collect();
    assert!(over.is_empty(), "lines {over:?} are handed out, and are W's, 17..21; listed: {listed:?}");
    assert!(listed.contains(&17), "{listed:?}");
}

/// The scene of `discard.rs`, `discarding_half_of_a_cut_does_not_hand_out_an_older_block`: an old free header lies where
/// A's rest begins, over Y. The power fails before the commit's fence is over: the entry is durable, the header of the
/// rest is not. The recovery stores both; the power fails again, and A's header alone is durable. The entry is
/// corrupted then, and discarded.
#[test]
fn discarding_an_entry_that_was_half_replayed_does_not_hand_out_an_older_block() {
    let heap = heap();
    assert_eq!([alloc(&heap, 0, 8), alloc(&heap, 1, 22), alloc(&heap, 2, 31)], [3, 11, 33]);
    free_now(&heap, 1);
    free_now(&heap, 0);
    assert_eq!([alloc(&heap, 0, 20), alloc(&heap, 1, 10)], [3, 23]);
    let y = at_line(&heap, 23);
    let filled = heap.transaction(|tx| tx.write_slice(Link::<u64>::vouched(y), &[0x59; 20]));
    filled.map_err(|error: TxError| error).unwrap();
    free_now(&heap, 0);
    let sim = Arc::clone(heap.pool().pmem());
    heap.close().unwrap();

    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    heap.scan_ahead(64).unwrap();
    settle(&heap);
    let before = sim.power_failure();
    assert_eq!(alloc(&heap, 0, 8), 3, "A");
    let after = sim.power_failure();
    let entries = entry_lines(&heap, &before, &after);
    assert_eq!(entries.len(), 1);
    let (front, rest) = (at_line(&heap, 3) as usize - 8, at_line(&heap, 11) as usize - 8);
    assert_ne!(
        before.durable[rest..rest + 8],
        after.durable[rest..rest + 8],
        "the rest's header was stored ahead"
    );
    core::mem::forget(heap);
    // The entry's line is written back first.
    let mut bytes = before.durable;
    bytes[entries[0]..entries[0] + 64].copy_from_slice(&after.durable[entries[0]..entries[0] + 64]);

    // The recovery, to a power failure after A's header was stored.
    let sim = sim_of(bytes.clone());
    sim.stop_at_change(front as u64 / 64 * 64);
    core::mem::forget(Heap::attach(Arc::clone(&sim), &options()).unwrap());
    let stopped = sim.stopped().unwrap();
    let crashed = (0..64).map(|seed| crash(&stopped, &mut Rng::of(seed)).durable);
    let mut crashed: Vec<_> =
        crashed.filter(|left| left[front..front + 8] != bytes[front..front + 8]).collect();
    assert!(!crashed.is_empty(), "A's header became durable by chance");
    crashed.dedup();
    for mut left in crashed {
        // Without corruption all is well.
        let heap = Heap::attach(sim_of(left.clone()), &options()).unwrap();
        assert!(heap.check().is_clean() && heap.blocks().contains(&y));
        drop(heap);

        left[entries[0] + 20] ^= 4;
        let refused = Heap::attach(sim_of(left.clone()), &options());
        assert!(matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. }))));
        let heap = Heap::attach(sim_of(left), &discarding()).unwrap();
        let listed: Vec<u64> = heap.blocks().iter().map(|&at| line_of(&heap, at)).collect();
        assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 1)), y, "Y is in use");
        let over: Vec<u64> = all_room(&heap).into_iter().filter(|line| (23..33).contains(line)).collect();
        assert!(over.is_empty(), "lines {over:?} are handed out, and are Y's, 23..33; listed: {listed:?}");
        assert!(listed.contains(&23), "{listed:?}");
    }
}
