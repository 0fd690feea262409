//! Discarding the entry of a lane that was idle while another lane wrapped: the older groups left in the log tell nothing about blocks that were
//! allocated over theirs since.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod discarding;
mod harness;
mod links;
mod sim;

use discarding::{SimHeap, alloc, discard, free_now, listed, slot, write_word};
use harness::Transact as _;
use links::link_to;
use pm_alloc::format::BlockHeader;
use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::Pmem as _;
use sim::Sim;
use std::sync::{Arc, mpsc};
use std::thread::Scope;

type Job = Box<dyn FnOnce(&SimHeap) + Send>;

fn options() -> HeapOptions {
    discarding::options().lanes(3)
}

/// Runs jobs one after the other, in a thread of its own.
struct Worker {
    jobs: mpsc::Sender<Job>,
    done: mpsc::Receiver<()>,
}

impl Worker {
    fn new<'s>(scope: &'s Scope<'s, '_>, heap: &'s SimHeap) -> Self {
        let (jobs, given) = mpsc::channel::<Job>();
        let (finish, done) = mpsc::channel();
        scope.spawn(move || {
            for job in given {
                job(heap);
                finish.send(()).unwrap();
            }
        });
        Self { jobs, done }
    }

    fn run<R: Send + 'static>(&self, job: impl FnOnce(&SimHeap) -> R + Send + 'static) -> R {
        let (tell, told) = mpsc::channel();
        self.jobs.send(Box::new(move |heap| tell.send(job(heap)).unwrap())).unwrap();
        self.done.recv().unwrap();
        told.recv().unwrap()
    }
}

/// A transaction that holds its lane while `inside` runs.
fn holding_a_lane(heap: &SimHeap, long: u64, inside: impl FnOnce()) {
    let held: Result<(), TxError> = heap.transaction(|tx| {
        tx.write(link_to(long), &[1_u64; 40])?;
        inside();
        Ok(())
    });
    held.unwrap();
}

/// Lane 2 allocates three blocks and is idle. The main thread frees them, allocates one block over all three, and wraps its own ring. Then lane 1,
/// which was idle, too, runs `last`, which returns the medium, and loses the first entry of that.
fn run(last: impl FnOnce(&SimHeap, u64) -> Vec<u8> + Send + 'static) {
    let heap = Heap::format(Arc::new(Sim::new(64 << 10)), &options()).unwrap();
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
            let jobs = third.jobs.clone();
            second.run(move |heap| {
                holding_a_lane(heap, other_long, || {
                    jobs.send(Box::new(|heap| write_word(heap, slot(heap, 6), 1))).unwrap();
                    while heap.pool().pmem().load_u64(slot(heap, 6)) == 0 {
                        std::thread::yield_now();
                    }
                });
            });
            third.done.recv().unwrap();
        });
        second.run(|heap| write_word(heap, slot(heap, 5), 1));
        let blocks =
            third.run(|heap| [alloc(heap, 0, 4), alloc(heap, 1, 2), alloc(heap, 2, 2), alloc(heap, 3, 1)]);
        (0..3).for_each(|number| free_now(heap, number));
        let over_all = alloc(heap, 4, 8);
        assert_eq!([over_all, over_all + 4, over_all + 6, over_all + 8], blocks);
        (0..200).for_each(|value| write_word(heap, slot(heap, 7), value));
        let before = heap.pool().pmem().power_failure().durable;
        let bytes = second.run(move |heap| last(heap, other_long));
        let layout = heap.layout();
        let ring =
            (0..layout.lane_entries).map(|entry| usize::try_from(layout.entry_offset(1, entry)).unwrap());
        let mut hit = ring.filter(|&at| before[at..at + 64] != bytes[at..at + 64]);
        let opened = discard(bytes.clone(), &[hit.next().unwrap()], &options());
        let at = discarding::at_line(&opened, over_all) - 8;
        let header = BlockHeader::from_word(opened.pool().pmem().load_u64(at), layout.seed, at).unwrap();
        assert_eq!(header.lines, 8, "{:?}", listed(&opened));
        discarding::assert_in_use(&opened, 4, over_all, 8);
    });
}

#[test]
fn discarded_group_of_idle_lane_changes_no_allocated_block() {
    run(|heap, long| {
        heap.transact(|tx| tx.write(link_to(long), &[5_u64; 9])).unwrap();
        heap.pool().pmem().power_failure().durable
    });
}

#[test]
fn discarded_undo_entry_of_idle_lane_changes_no_allocated_block() {
    run(|heap, long| {
        let mut bytes = Vec::new();
        holding_a_lane(heap, long, || bytes = heap.pool().pmem().power_failure().durable);
        bytes
    });
}
