//! The cost of each operation in lines and fences.

use super::prelude::*;
use pm_alloc::{Tx, View};
use pm_core::{Counting, Counts, LineCounting};
use std::time::Duration;

type CountedHeap = Heap<AnyPmem<'static>>;
type CountedTx<'p> = Tx<'p, AnyPmem<'static>>;
type CountedView<'p> = View<'p, AnyPmem<'static>>;

/// A heap with a slot, a pair and a long array, each in its own lines.
fn heap() -> CountedHeap {
    let region = Counting::new(Region::anonymous(16 << 20).unwrap());
    let heap = Heap::format(any(region), &HeapOptions::new()).unwrap();
    heap.transact(|tx| {
        let slot = tx.alloc_zeroed::<Link<[u64; 40]>>(1)?;
        tx.set_root("slot", slot)?;
        let pair = tx.alloc_zeroed::<[u64; 2]>(1)?;
        tx.set_root("pair", pair)?;
        let array = tx.alloc_zeroed::<u8>(65_536)?;
        tx.set_root("array", array)
    })
    .unwrap();
    // This transaction, which is not counted, flushes the target lines of the one above.
    let word = |tx: &mut CountedTx<'_>| {
        let pair = tx.root::<[u64; 2]>("pair")?.unwrap();
        tx.write(pair, &[1, 1])
    };
    heap.transaction(word).unwrap();
    heap
}

/// The flushed lines and the fences of a transaction. They include the target lines of its lane's previous transaction, which it flushes. Its own
/// target lines are flushed by the next transaction.
fn cost(heap: &CountedHeap, transaction: impl FnOnce(&mut CountedTx<'_>) -> Result<(), TxError>) -> Counts {
    let (result, cost) = heap.pool().pmem().counted().count(|| heap.transaction(transaction));
    result.unwrap();
    cost
}

/// The cost of a call of a view on the slot with this number, counted as in [`cost`]. Each slot has its own line.
fn slot_cost<T>(
    heap: &CountedHeap,
    number: u64,
    call: impl for<'p> FnOnce(&CountedView<'p>, Link<'p, Link<'p, T>>) -> Result<(), TxError>,
) -> Counts {
    heap.view(|view| {
        let array = view.root::<u8>("array").unwrap().unwrap();
        let slot = link_to(array.offset() + 4096 * number);
        let (result, cost) = heap.pool().pmem().counted().count(|| call(view, slot));
        result.unwrap();
        cost
    })
}

#[test]
fn one_range_in_a_line_costs_one_fence() {
    let heap = heap();
    let change = |tx: &mut CountedTx<'_>| {
        let pair = tx.root::<[u64; 2]>("pair")?.unwrap();
        tx.edit(pair, |pair| *pair = [pair[0] + 1; 2])
    };
    cost(&heap, change);
    // The log entry, and the target of the transaction before it.
    assert_eq!(cost(&heap, change), Counts { lines: 2, fences: 1 });
}

#[test]
fn transaction_without_changes_costs_nothing() {
    let heap = heap();
    assert_eq!(cost(&heap, |tx| tx.root::<Link<[u64; 40]>>("slot").map(drop)), Counts::default());
}

#[test]
fn allocating_and_linking_costs_two_fences_and_freeing_one() {
    let heap = heap();
    let publish = |tx: &mut CountedTx<'_>| {
        let slot = tx.root::<Link<[u64; 40]>>("slot")?.unwrap();
        let block = tx.alloc(&[7_u64; 40])?;
        tx.write(slot, &block)
    };
    let free = |tx: &mut CountedTx<'_>| {
        let slot = tx.root::<Link<[u64; 40]>>("slot")?.unwrap();
        let block = tx.read(slot)?;
        tx.write(slot, &Link::NULL)?;
        tx.free(block)
    };
    (0..3).for_each(|_| {
        cost(&heap, publish);
        cost(&heap, free);
    });
    // Five lines of payload; the log entry; the targets of the preceding free: a header and the slot; the header of the rest if it splits a block.
    let payload = 5;
    let published = cost(&heap, publish);
    assert_eq!(published.fences, 2);
    assert!((payload + 3..=payload + 4).contains(&published.lines), "{published:?}");
    // The log entry; the targets of the preceding allocation: a header and the slot.
    let freed = cost(&heap, free);
    assert_eq!(freed.fences, 1);
    assert_eq!(freed.lines, 3);
}

#[test]
fn allocating_and_linking_short_block_costs_one_fence() {
    let heap = heap();
    let publish = |tx: &mut CountedTx<'_>| {
        let slot = tx.root::<Link<[u64; 40]>>("slot")?.unwrap();
        let block = tx.alloc(&[7_u64; 6])?;
        tx.write(slot, &link_to(block.offset()))
    };
    assert_eq!(cost(&heap, publish).fences, 1);
}

/// In a heap of one chunk, the first transaction keeps the front of the chunk, and the next transactions use the rest of that front.
#[test]
fn trimming_the_last_free_extent_costs_two_lines_and_two_fences() {
    let options = HeapOptions::new().lanes(8).lane_entries(60).chunk_bytes(1 << 18);
    let heap = Heap::format(any(Counting::new(Region::anonymous(1 << 19).unwrap())), &options).unwrap();
    assert_eq!(heap.check().chunks.len(), 1);
    let alloc = |tx: &mut CountedTx<'_>| tx.alloc_uninit::<u64>(7).map(drop);
    // The trim: two lines and two fences. The transaction: its log entry, and the header of the rest.
    assert_eq!(cost(&heap, alloc), Counts { lines: 2 + 2, fences: 2 + 1 });
    // The log entry, the header of the rest, and the target of the transaction before: its block's header. No trim.
    let part = (4096 - 1) / 8;
    (1..part - 1).for_each(|_| assert_eq!(cost(&heap, alloc), Counts { lines: 2 + 1, fences: 1 }));
    // The last block of the part leaves no rest. Then the next extent is trimmed.
    assert_eq!(cost(&heap, alloc), Counts { lines: 1 + 1, fences: 1 });
    assert_eq!(cost(&heap, alloc), Counts { lines: 2 + 2 + 1, fences: 2 + 1 });
    // A longer block does not fit into the rest of the part. A live entry stores the header before that rest, so the lane is retired first. Retiring
    // flushes the target of the transaction before, and then the retired LSN and its copy.
    let long = |tx: &mut CountedTx<'_>| tx.alloc_uninit::<u64>(8 * part - 1).map(drop);
    assert_eq!(cost(&heap, long), Counts { lines: 2 + 2 + (1 + 2), fences: 2 + 1 + 2 });

    // If the heap has unused chunks, no extent is trimmed.
    let heap = Heap::format(any(Counting::new(Region::anonymous(1 << 20).unwrap())), &options).unwrap();
    assert_eq!(heap.check().chunks.len(), 3);
    assert_eq!(cost(&heap, alloc), Counts { lines: 2, fences: 1 });
}

/// Each call stores one log entry. The counted lines are that entry, the header of the rest of a split block, and the targets of the previous call.
#[test]
fn linking_an_uninit_block_and_freeing_it_cost_one_fence_each() {
    let heap = heap();
    let alloc = |slot| {
        slot_cost::<[u64; 40]>(&heap, slot, |view, slot| view.alloc_uninit_and_link(slot, 1).map(drop))
    };
    let free = |slot| slot_cost::<[u64; 40]>(&heap, slot, |view, slot| view.unlink_and_free(slot));
    let one_fence = |lines| Counts { lines, fences: 1 };
    // The header of the rest is flushed with the entry.
    assert_eq!(alloc(0), one_fence(2 + 1), "the pair's line");
    assert_eq!(alloc(1), one_fence(2 + 2), "a header, a slot");
    assert_eq!(free(1), one_fence(1 + 2), "a header, a slot");
    assert_eq!(alloc(1), one_fence(2 + 2), "a header, a slot");
    free(1);
    assert_eq!(free(0), one_fence(1 + 2), "a header, a slot");

    alloc(0);
    cost(&heap, |tx| {
        let pair = tx.root::<[u64; 2]>("pair")?.unwrap();
        tx.write(pair, &[2, 2])
    });
    assert_eq!(free(0), one_fence(1 + 1), "the pair's line");
}

/// Links two slots to values of `N` words, and frees one. Linking costs `lines` in addition to the targets of the call before: a header and a slot.
fn assert_linking_costs<const N: usize>(lines: u64, fences: u64) {
    let heap = heap();
    let alloc =
        |slot| slot_cost::<[u64; N]>(&heap, slot, |view, slot| view.alloc_and_link(slot, &[7; N]).map(drop));
    let free = |slot| slot_cost::<[u64; N]>(&heap, slot, |view, slot| view.unlink_and_free(slot));
    alloc(0);
    assert_eq!(alloc(1), Counts { lines: lines + 2, fences });
    assert_eq!(free(1), Counts { lines: 1 + 2, fences: 1 });
    assert_eq!(alloc(1), Counts { lines: lines + 2, fences }, "after the freeing");
}

#[test]
fn linking_a_long_value_costs_its_lines_and_two_fences() {
    // Five lines of payload, the entry, the header of the rest.
    assert_linking_costs::<40>(5 + 2, 2);
}

#[test]
fn linking_a_short_value_costs_one_fence() {
    // Two entries with 96 bytes in total, and one with words; two lines of payload. The header of the rest is in the second line of payload.
    assert_linking_costs::<12>(3 + 2, 1);
}

#[test]
fn word_in_place_costs_one_line_and_one_fence() {
    let heap = heap();
    let store =
        |value| slot_cost::<u64>(&heap, 1, |view, word| view.store_u64(link_to(word.offset()), value));
    store(1);
    assert_eq!(store(2), Counts { lines: 1, fences: 1 });
}

#[test]
fn pair_in_place_costs_one_line_and_one_fence() {
    let heap = heap();
    let store = |value| {
        slot_cost::<u64>(&heap, 1, |view, pair| view.store_u64_pair(link_to(pair.offset() + 16), value))
    };
    store([1, 2]);
    assert_eq!(store([3, 4]), Counts { lines: 1, fences: 1 });
}

#[test]
fn long_write_in_place_costs_three_fences() {
    let heap = heap();
    let write = |tx: &mut CountedTx<'_>| {
        let array = tx.root::<u8>("array")?.unwrap();
        tx.write_slice(array, &[5; 4096])
    };
    cost(&heap, write);
    let cost = cost(&heap, write);
    assert_eq!(cost.fences, 3);
    // 86 undo entries of 48 bytes, 64 or 65 lines of data, the commit entry, and the lane's header that ends the undo entries.
    assert!((86 + 64 + 2..=86 + 65 + 3).contains(&cost.lines), "{cost:?}");
}

/// A line contains a header and the end of the block before it. It is written at most four times for the header, and once for the contents.
#[test]
fn line_is_written_at_most_five_times_during_quarantine() {
    let options = HeapOptions::new().lanes(1).lane_entries(1000).quarantine(Duration::from_secs(3600));
    let region = Arc::new(LineCounting::new(Region::anonymous(1 << 20).unwrap()));
    let heap = Heap::format(any(&region), &options).unwrap();
    region.reset();
    let (mut live, mut random) = (Vec::new(), Rng::of(1));
    loop {
        let len = 120 + random.index(512);
        let allocated = heap.transaction(|tx| tx.alloc_slice(&vec![7_u8; len]).map(Link::offset));
        match allocated {
            Ok(block) => live.push(block),
            Err(TxError::Space(_)) => break,
            Err(error) => panic!("{error}"),
        }
        if random.one_in(2) {
            let block = live.swap_remove(random.index(live.len()));
            heap.transact(|tx| tx.free(link_to::<u8>(block))).unwrap();
        }
    }
    let chunks_start = heap.layout().chunks_start;
    let lines = region.stored().by_line();
    let worst = lines.into_iter().filter(|(line, _)| *line >= chunks_start).map(|(_, count)| count).max();
    assert!(worst <= Some(5), "{worst:?}");
}
