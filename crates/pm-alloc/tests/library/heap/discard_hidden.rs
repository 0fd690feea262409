//! Discarding a corrupted log entry loses no block of other transactions, even if something could hide the block from recovery: a second corrupted
//! line, contents that look like a header, or a recovery that a power failure interrupted.

use super::prelude::*;
use crate::discarding::{
    ENTRIES, alloc, assert_in_use, at_line, discard, entries_of, entry_lines, free, free_now, heap,
    heap_with_an_old_header, line_of, listed, options, sim_of, slot, with_worker, write_word,
};
use crate::sim::SimHeap;

/// A transaction T allocates in lane 0, which then is idle. Lane 1 has an entry older than T; its next entry allocates W in the rest of T's free
/// block. Then its ring wraps around, so that the older entry is dead. T's entry and that dead entry are corrupted.
#[test]
fn dead_corrupted_entry_of_another_lane_hides_no_block() {
    let heap = heap();
    let mut a = 0;
    let (t, dead, w) = with_worker(&heap, |other| {
        let dead = entries_of(&heap, || other.run(|heap| write_word(heap, slot(heap, 7), 1)));
        let t = entries_of(&heap, || a = alloc(&heap, 1, 4));
        let w = other.run(|heap| {
            let w = alloc(heap, 2, 4);
            (2..u64::from(ENTRIES)).for_each(|number| write_word(heap, slot(heap, 7), number));
            w
        });
        (t, dead, w)
    });
    assert_eq!((w, t.len(), dead.len()), (a + 4, 1, 1));
    let bytes = heap.pool().pmem().sampled().power_failure().durable;
    core::mem::forget(heap);
    for lines in [vec![t[0]], vec![t[0], dead[0]]] {
        assert_in_use(&discard(bytes.clone(), &lines, &options()), 2, w, 4);
    }
}

/// Runs `t` in lane 0. Then runs `others` in lane 1, which return the line of block W. The power fails. The only entry of `t` is corrupted and
/// discarded. Asserts that W, to which slot 2 links, is still allocated, with 4 lines.
fn assert_w_stays(
    heap: SimHeap,
    t: impl FnOnce(&SimHeap),
    others: impl FnOnce(&SimHeap) -> u64 + Send + 'static,
) {
    let sim = Arc::clone(heap.pool().pmem().sampled());
    let (entries, w) = with_worker(&heap, |other| (entries_of(&heap, || t(&heap)), other.run(others)));
    assert_eq!(entries.len(), 1);
    core::mem::forget(heap);
    let heap = discard(sim.power_failure().durable, &entries, &options());
    assert_in_use(&heap, 2, w, 4);
}

/// A heap that was closed and opened again. The lines 3 to 7 are one free block, and the rest of the chunk is another free block. If `with_b`, an
/// allocated block B covers the first and a part of the second, so that the former header at line 8 is inside B.
fn heap_with_former_header(with_b: bool) -> SimHeap {
    let heap = heap();
    assert_eq!(alloc(&heap, 0, 5), 3);
    free_now(&heap, 0);
    if with_b {
        assert_eq!(alloc(&heap, 0, 10), 3, "B");
    }
    let sim = Arc::clone(heap.pool().pmem().sampled());
    heap.close().unwrap();
    let heap = Heap::attach(any(sim), &options()).unwrap();
    heap.scan_ahead(64).unwrap();
    heap
}

/// Reads 16 words of the block at line 3, including the former header, changes the first, and writes all of them back.
fn change_one_of_16(heap: &SimHeap) {
    heap.transact(|tx| {
        let place = link_to::<[u64; 16]>(at_line(heap, 3) + 8 * 32);
        let mut words = tx.read(place)?;
        words[0] += 1;
        tx.write(place, &words)
    })
    .unwrap();
}

/// T allocates after B, then W is allocated from the rest. Another transaction writes the former header in B again, unchanged.
#[test]
fn rewritten_word_that_looks_like_a_header_hides_no_block() {
    let t = |heap: &SimHeap| assert_eq!(alloc(heap, 1, 4), 13, "A");
    for by_view in [false, true] {
        assert_w_stays(heap_with_former_header(true), t, move |heap| {
            assert_eq!(alloc(heap, 2, 4), 17, "W");
            let at = at_line(heap, 8) - 8;
            let word = heap.pool().pmem().load_u64(at);
            if by_view {
                // A live entry stores to the line, so the word is committed by the log.
                write_word(heap, at - 8, 1);
                heap.view(|view| view.store_u64(link_to(at), word)).unwrap();
            } else {
                write_word(heap, at, word);
            }
            17
        });
    }
}

/// As above, but 16 words are written back. Then B is freed. No log entry is as old as the allocation of B.
#[test]
fn written_back_words_of_freed_block_hide_no_block() {
    let t = |heap: &SimHeap| assert_eq!(alloc(heap, 1, 4), 13, "A");
    assert_w_stays(heap_with_former_header(true), t, |heap| {
        assert_eq!(alloc(heap, 2, 4), 17, "W");
        change_one_of_16(heap);
        free(heap, 0);
        17
    });
}

/// As above, but T allocates the block with the former header. Once T is discarded, those lines are free.
#[test]
fn written_back_words_of_discarded_block_hide_no_block() {
    let t = |heap: &SimHeap| assert_eq!(alloc(heap, 0, 10), 3, "A");
    assert_w_stays(heap_with_former_header(false), t, |heap| {
        assert_eq!(alloc(heap, 2, 4), 13, "W");
        change_one_of_16(heap);
        13
    });
}

/// T frees P, and coalesces it with the free lines before P. P's old header stays. T's entry is dead because of later groups in its lane, so an open
/// transaction V reserves the lines and trims them, without the log. W is allocated from the rest, inside the former P. T's entry is between two
/// groups in the ring, of which the later is live, so open is refused when T's entry is corrupted.
#[test]
fn discarded_dead_freeing_before_trim_hides_no_block() {
    let options = options().chunk_bytes(1 << 14);
    let heap = Heap::format(any(Arc::new(SampledPmem::new(56 << 10))), &options).unwrap();
    let made = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc_zeroed::<u64>(8)?.offset()));
    assert_eq!((made.unwrap(), heap.check().chunks.len()), (heap.layout().first_payload(0), 1));
    let sim = Arc::clone(heap.pool().pmem().sampled());
    let (mut bytes, mut entries, mut w) = (vec![], vec![], 0);
    with_worker(&heap, |other| {
        let (f, p) = (alloc(&heap, 0, 2), alloc(&heap, 1, 235));
        assert_eq!((p, alloc(&heap, 3, 16)), (f + 2, p + 235), "F, P and G are adjacent");
        free_now(&heap, 0);
        heap.checkpoint().unwrap();
        entries = entries_of(&heap, || free(&heap, 1));
        other.run(|heap| write_word(heap, slot(heap, 7), 8));
        (0..3).for_each(|word| write_word(&heap, slot(&heap, 6), word));
        let rolled_back = heap.transaction(|tx| {
            let v = tx.alloc_uninit::<u64>(1)?.offset();
            w = other.run(|heap| alloc(heap, 2, 30));
            assert!(line_of(&heap, v) == f && p < w && w < p + 235, "W is inside the former P");
            bytes = sim.power_failure().durable;
            Err::<(), _>(TxError::Nested)
        });
        assert!(matches!(rolled_back, Err(TxError::Nested)));
    });
    core::mem::forget(heap);
    assert_eq!(entries.len(), 1);
    let intact = listed(&Heap::attach(any(sim_of(bytes.clone())), &options).unwrap());
    assert!(intact.contains(&w), "{intact:?}");
    let heap = discard(bytes, &entries, &options);
    assert_eq!(listed(&heap), intact, "P is free, because T was applied");
    assert_in_use(&heap, 2, w, 30);
}

/// As in `discarded_half_durable_split_reallocates_no_older_block` of `discard.rs`, the rest begins at an old header of a free block that included
/// lines of Y. The power fails before the commit's fence completes: the entry is durable, the header of the rest is not. Recovery stores both.
/// The power fails again, and only A's header is durable. Then the entry is corrupted and discarded.
#[test]
fn discarded_half_replayed_entry_reallocates_no_older_block() {
    let heap = heap_with_an_old_header();
    let (sim, y) = (Arc::clone(heap.pool().pmem().sampled()), at_line(&heap, 23));
    let before = sim.power_failure();
    assert_eq!(alloc(&heap, 0, 8), 3, "A");
    let after = sim.power_failure();
    let entries = entry_lines(&heap, &before, &after);
    assert_eq!(entries.len(), 1);
    let (front, rest) = (at_line(&heap, 3) as usize - 8, at_line(&heap, 11) as usize - 8);
    assert_ne!(
        before.durable[rest..rest + 8],
        after.durable[rest..rest + 8],
        "the commit stores the header of the rest"
    );
    core::mem::forget(heap);
    // The entry's line is evicted first.
    let mut bytes = before.durable;
    bytes[entries[0]..entries[0] + 64].copy_from_slice(&after.durable[entries[0]..entries[0] + 64]);

    // Recovery runs until the power fails, right after A's header was stored.
    let sim = sim_of(bytes.clone());
    sim.stop_at_change(front as u64 / 64 * 64);
    core::mem::forget(Heap::attach(any(Arc::clone(&sim)), &options()).unwrap());
    let stopped = sim.stopped().unwrap();
    let crashed = (0..64).map(|seed| stopped.crash(&mut Rng::of(seed)).durable);
    let mut crashed: Vec<_> =
        crashed.filter(|left| left[front..front + 8] != bytes[front..front + 8]).collect();
    assert!(!crashed.is_empty(), "in some crashes A's header is durable");
    crashed.dedup();
    for left in crashed {
        // Recovery without corruption keeps Y.
        let heap = Heap::attach(any(sim_of(left.clone())), &options()).unwrap();
        assert!(heap.check().is_clean() && heap.blocks().contains(&y));
        drop(heap);

        assert_in_use(&discard(left, &entries, &options()), 1, 23, 10);
    }
}

/// The last entry of lane 0 frees F, and lane 0 is retired. Lane 1 allocates W in the lines of F, and its ring wraps around twice. Both copies of
/// the retired LSN of lane 0 are corrupted.
#[test]
fn retired_lane_with_corrupted_words_hides_no_block() {
    let heap = heap();
    let sim = Arc::clone(heap.pool().pmem().sampled());
    with_worker(&heap, |other| {
        assert_eq!([alloc(&heap, 0, 10), alloc(&heap, 1, 51)], [3, 13]);
        free_now(&heap, 0);
        other.run(|heap| {
            assert_eq!(alloc(heap, 2, 4), 3, "W");
            (0..2 * u64::from(ENTRIES)).for_each(|number| write_word(heap, slot(heap, 7), number));
        });
    });
    let words = heap.layout().retired_offsets(0).map(|word| word as usize - 20);
    core::mem::forget(heap);
    assert_in_use(&discard(sim.power_failure().durable, &words, &options()), 2, 3, 4);
}
