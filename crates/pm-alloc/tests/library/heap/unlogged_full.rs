//! An unlogged heap is full only if there is no room even after the calls in progress have returned what they do not need. Also, panics in callbacks.

use super::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const fn bytes(lines: u64) -> u64 {
    64 * lines - 8
}

/// A full heap except for `free_chunks` chunks, which are free. Each chunk has 63 lines for blocks.
fn heap(free_chunks: usize) -> UnloggedHeap {
    let options = HeapOptions::new().lanes(1).lane_entries(16).chunk_bytes(4096);
    let heap = UnloggedHeap::new(Heap::format(Region::anonymous(48 << 10).unwrap(), &options).unwrap());
    let blocks: Vec<u64> = core::iter::from_fn(|| heap.alloc(bytes(63), 64).ok()).collect();
    assert!(blocks.len() > free_chunks, "{blocks:?}");
    blocks.iter().rev().take(free_chunks).for_each(|&block| heap.free(block).unwrap());
    heap
}

/// The result of allocating `lines` lines. The call begins while another call, for a block of `held` lines, holds all free space.
fn alloc_while_held(free_chunks: usize, held: u64, lines: u64) -> Result<u64, UnloggedError> {
    let heap = heap(free_chunks);
    thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        let ensure = |_, _| {
            let call = scope.spawn(|| heap.alloc(bytes(lines), 64));
            // A call that does not wait for this one finishes within this time.
            let end = Instant::now() + Duration::from_millis(50);
            while !call.is_finished() && Instant::now() < end {
                thread::yield_now();
            }
            send.send(call).unwrap();
            true
        };
        heap.alloc_if(bytes(held), 64, ensure).unwrap();
        receive.recv().unwrap().join().unwrap()
    })
}

#[test]
fn allocation_waits_for_rest_of_last_free_extent() {
    assert!(alloc_while_held(1, 2, 61).is_ok());
    assert!(alloc_while_held(2, 70, 50).is_ok(), "an allocation waits for a huge block's rest");
}

#[test]
fn allocation_fails_if_rest_of_last_free_extent_is_too_short() {
    for (free_chunks, held, lines) in [(1, 2, 62), (1, 63, 1), (2, 70, 60), (2, 70, 100)] {
        let found = alloc_while_held(free_chunks, held, lines);
        let full = UnloggedError::Space(SpaceError::Full { lines, quarantined: false, held: false });
        assert_eq!(found, Err(full), "{free_chunks} {held}");
    }
}

/// The reservation of a call that panicked is free again, and no call waits for it.
#[test]
fn panic_in_ensure_returns_reservations() {
    let heap = heap(2);
    for lines in [2, 70] {
        let calls = core::cell::Cell::new(0);
        let panics = |_, _| {
            calls.set(calls.get() + 1);
            assert!(lines == 2 && calls.get() == 1, "the program's own bug");
            false
        };
        let panicked = catch_unwind(AssertUnwindSafe(|| heap.alloc_if(bytes(lines), 64, panics)));
        assert!(panicked.is_err());
    }
    let block = heap.alloc(bytes(70), 64).unwrap();
    let full = UnloggedError::Space(SpaceError::Full { lines: 60, quarantined: false, held: false });
    assert_eq!(heap.alloc(bytes(60), 64), Err(full));
    heap.free(block).unwrap();
}

/// The block is shorter than a chunk, then longer.
#[test]
fn panic_in_ensure_of_resize_changes_nothing() {
    let options = HeapOptions::new().chunk_bytes(4096);
    let heap = UnloggedHeap::new(Heap::format(Region::anonymous(1 << 18).unwrap(), &options).unwrap());
    for lines in [2, 70] {
        let block = heap.alloc(bytes(lines), 64).unwrap();
        let room = heap.usable_bytes(block).unwrap();
        let calls = core::cell::Cell::new(0);
        let panics = |_, _| {
            calls.set(calls.get() + 1);
            assert!(calls.get() > 1, "the program's own bug");
            true
        };
        let longer = bytes(2 * lines);
        let panicked = catch_unwind(AssertUnwindSafe(|| heap.resize(block, longer..=longer + 4096, panics)));
        assert!(panicked.is_err());
        assert_eq!(heap.usable_bytes(block).unwrap(), room);
        assert!(heap.resize(block, longer..=longer, |_, _| true).unwrap() >= Some(longer));
    }
}

#[test]
fn panic_while_heap_is_frozen_changes_nothing() {
    let heap = heap(2);
    let panicked =
        catch_unwind(AssertUnwindSafe(|| heap.freeze().pieces(|_| panic!("the program's own bug"))));
    assert!(panicked.is_err());
    heap.alloc(100, 64).unwrap();
}

/// While the heap is frozen, other threads wait for its locks, including the lock of huge blocks.
#[test]
fn panic_while_heap_is_frozen_releases_locks() {
    let options = HeapOptions::new().lanes(1).lane_entries(16).chunk_bytes(4096);
    let heap = UnloggedHeap::new(Heap::format(Region::anonymous(1 << 20).unwrap(), &options).unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = || {
            while !is_over.load(Ordering::Relaxed) {
                let block = heap.alloc(9000, 64).unwrap();
                heap.free(block).unwrap();
            }
        };
        let waiting = [(); 3].map(|()| scope.spawn(waiting));
        for _ in 0..10_000 {
            let frozen = || {
                let frozen = heap.freeze();
                frozen.pieces(|_| ());
                resume_unwind(Box::new("the program's own bug"));
            };
            assert!(catch_unwind(AssertUnwindSafe(frozen)).is_err());
        }
        is_over.store(true, Ordering::Relaxed);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Each of eight threads has one block of at most four lines. Seven blocks leave 35 lines in at most eight parts, so a part has room for the eighth.
#[test]
fn concurrent_allocations_do_not_find_heap_full() {
    let heap = heap(1);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..5_000 {
                    let block = heap.alloc(bytes(1 + number % 4), 64).unwrap();
                    heap.free(block).unwrap();
                }
            });
        }
    });
    assert!(heap.alloc(bytes(63), 64).is_ok());
}
