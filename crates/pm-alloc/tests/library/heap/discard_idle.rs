//! Discarding the entry of a lane that was idle while the ring of another lane wrapped around. Older groups in the log do not affect blocks that
//! were allocated later on the same lines.

use super::prelude::*;
use crate::discarding::{
    Worker, alloc, assert_in_use, at_line, discard, free_now, holding_a_lane, listed, slot, write_word,
};
use crate::sim::SimHeap;
use pm_alloc::format::BlockHeader;
use std::sync::mpsc;

fn options() -> HeapOptions {
    crate::discarding::options().lanes(3)
}

/// Lane 2 allocates four blocks and is idle. The main thread frees three of them, allocates one block over all three, and wraps around its own ring.
/// Then lane 1, which was idle, too, runs `last`, which returns the medium. The first entry of `last` is corrupted and discarded.
fn run(last: impl FnOnce(&SimHeap, u64) -> Vec<u8> + Send + 'static) {
    let heap = Heap::format(any(Arc::new(SampledPmem::new(64 << 10))), &options()).unwrap();
    let heap = &heap;
    let made = heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(8)?;
        tx.set_root("slots", slots)?;
        Ok([slots.offset(), tx.alloc_zeroed::<u64>(40)?.offset(), tx.alloc_zeroed::<u64>(40)?.offset()])
    });
    let [slots, long, other_long] = made.unwrap();
    assert_eq!(slots, slot(heap, 0));
    std::thread::scope(|scope| {
        let (second, third) = (Worker::new(scope, heap), Worker::new(scope, heap));
        holding_a_lane(heap, long, || {
            let (hold, held) = mpsc::channel();
            let (release, released) = mpsc::channel();
            let done = second.begin(move |heap| {
                holding_a_lane(heap, other_long, || {
                    hold.send(()).unwrap();
                    released.recv().unwrap()
                })
            });
            held.recv().unwrap();
            third.run(|heap| write_word(heap, slot(heap, 6), 1));
            release.send(()).unwrap();
            done.recv().unwrap();
        });
        second.run(|heap| write_word(heap, slot(heap, 5), 1));
        let blocks =
            third.run(|heap| [alloc(heap, 0, 4), alloc(heap, 1, 2), alloc(heap, 2, 2), alloc(heap, 3, 1)]);
        (0..3).for_each(|number| free_now(heap, number));
        let over_all = alloc(heap, 4, 8);
        assert_eq!([over_all, over_all + 4, over_all + 6, over_all + 8], blocks);
        (0..200).for_each(|value| write_word(heap, slot(heap, 7), value));
        let before = heap.pool().pmem().sampled().power_failure().durable;
        let bytes = second.run(move |heap| last(heap, other_long));
        let layout = heap.layout();
        let ring =
            (0..layout.lane_entries).map(|entry| usize::try_from(layout.entry_offset(1, entry)).unwrap());
        let mut hit = ring.filter(|&at| before[at..at + 64] != bytes[at..at + 64]);
        let opened = discard(bytes.clone(), &[hit.next().unwrap()], &options());
        let at = at_line(&opened, over_all) - 8;
        let header = BlockHeader::from_word(opened.pool().pmem().load_u64(at), layout.seed, at).unwrap();
        assert_eq!(header.lines, 8, "{:?}", listed(&opened));
        assert_in_use(&opened, 4, over_all, 8);
    });
}

#[test]
fn discarded_group_of_idle_lane_changes_no_allocated_block() {
    run(|heap, long| {
        heap.transact(|tx| tx.write(link_to(long), &[5_u64; 9])).unwrap();
        heap.pool().pmem().sampled().power_failure().durable
    });
}

#[test]
fn discarded_undo_entry_of_idle_lane_changes_no_allocated_block() {
    run(|heap, long| {
        let mut bytes = Vec::new();
        holding_a_lane(heap, long, || bytes = heap.pool().pmem().sampled().power_failure().durable);
        bytes
    });
}
