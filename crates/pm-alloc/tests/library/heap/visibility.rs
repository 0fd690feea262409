//! Visibility of transactions to other threads, and the absence of deadlocks.

use super::prelude::*;
use core::ops::Range;
use pm_core::RootError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

fn heap(options: &HeapOptions) -> Heap {
    Heap::format(Region::anonymous(4 << 20).unwrap(), options).unwrap()
}

fn block(heap: &Heap, bytes: u64) -> u64 {
    heap.transact(|tx| tx.alloc_zeroed::<u8>(bytes).map(Link::offset)).unwrap()
}

/// Some transactions hold a lane and then set a root. Another transaction sets a root and then needs a lane.
#[test]
fn transactions_that_set_roots_do_not_deadlock() {
    for lanes in [1, 2] {
        let writers = lanes as usize;
        let heap: &'static Heap =
            Box::leak(Box::new(heap(&HeapOptions::new().lanes(lanes).lane_entries(400))));
        let blocks: Vec<u64> = (0..=writers).map(|_| block(heap, 4096)).collect();
        let barrier = Arc::new(Barrier::new(writers + 1));
        let (done, finished) = mpsc::channel();
        for (thread, &at) in blocks.iter().enumerate() {
            let (barrier, done) = (Arc::clone(&barrier), done.clone());
            std::thread::spawn(move || {
                let set = heap.transaction(|tx| {
                    let name = format!("root {thread}");
                    if thread < writers {
                        tx.write_slice(link_to(at), &[1_u8; 4096])?;
                        barrier.wait();
                        tx.set_root(&name, link_to::<u8>(at))
                    } else {
                        tx.set_root(&name, link_to::<u8>(at))?;
                        barrier.wait();
                        Ok(())
                    }
                });
                done.send(set.map_err(|error: TxError| error.to_string())).unwrap();
            });
        }
        for _ in 0..=writers {
            finished.recv_timeout(Duration::from_secs(20)).expect("no transaction deadlocks").unwrap();
        }
        assert_eq!(heap.pool().roots().len(), writers + 2, "all roots and that of the heap");
    }
}

/// A hook that runs after each store.
struct Watch<'w>(&'w (dyn Fn(u64) + Sync));

impl<R: Pmem> Hook<R> for Watch<'_> {
    fn after_store(&self, range: Range<u64>) {
        (self.0)(range.start);
    }
}

/// Another thread looks roots up after each word of the directory that a commit stores.
#[test]
fn root_lookup_during_change_finds_old_or_new() {
    const DIRECTORY: std::ops::Range<u64> = 4096..8192;
    let region = Region::anonymous(4 << 20).unwrap();
    let stores = AtomicU64::new(0);
    let watch = |offset: u64| {
        if DIRECTORY.contains(&offset) {
            stores.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let heap =
        Heap::format(any(Hooked { region: &region, hook: Watch(&watch) }), &HeapOptions::new().lanes(4))
            .unwrap();
    let at = heap
        .transact(|tx| {
            let block = tx.alloc_zeroed::<u64>(8)?;
            tx.set_root("changing", block)?;
            Ok(block.offset())
        })
        .unwrap();
    let (before, stop) = (stores.load(Ordering::SeqCst), AtomicBool::new(false));
    let looks: Result<(), RootError> = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                heap.view(|view| {
                    assert!(view.root::<u64>("absent")?.is_none());
                    assert!(view.root::<u64>("changing")?.is_some());
                    Ok::<_, RootError>(())
                })?;
            }
            Ok(())
        });
        heap.transact(|tx| tx.set_root("changing", link_to::<u64>(at + 8))).unwrap();
        stop.store(true, Ordering::Relaxed);
        looking.join().unwrap()
    });
    assert!(stores.load(Ordering::SeqCst) > before);
    looks.unwrap();
}

/// Two open transactions both find the last free slot. The second one to commit fails, and changes nothing.
#[test]
fn one_of_two_transactions_gets_last_free_root_slot() {
    let heap = heap(&HeapOptions::new().lanes(4));
    let at = block(&heap, 64);
    for number in 0..61 {
        heap.transact(|tx| tx.set_root(&format!("root {number}"), link_to::<u64>(at))).unwrap();
    }
    let outer = heap.transaction(|tx| {
        tx.set_root("outer", link_to::<u64>(at))?;
        tx.write(link_to(at), &7_u64)?;
        std::thread::scope(|scope| {
            let inner = || heap.transaction(|tx| tx.set_root("inner", link_to::<u64>(at)));
            scope.spawn(inner).join().unwrap()
        })
    });
    assert!(matches!(outer, Err(TxError::Root(RootError::Full { .. }))), "{outer:?}");
    heap.view(|view| {
        assert!(view.root::<u64>("inner").unwrap().is_some());
        assert!(view.root::<u64>("outer").unwrap().is_none());
        assert_eq!(view.read(link_to::<u64>(at)).unwrap(), 0);
    });
}

/// After each store of a commit, a reader without a lock finds either no link or an initialized block.
#[test]
fn block_is_initialized_before_its_link_is_visible() {
    let region = Region::anonymous(4 << 20).unwrap();
    let slot = AtomicU64::new(0);
    let looks = AtomicU64::new(0);
    let watch = |_: u64| {
        let slot = slot.load(Ordering::SeqCst);
        let link = if slot == 0 { 0 } else { region.load_u64(slot) };
        if link != 0 {
            looks.fetch_add(1, Ordering::SeqCst);
            assert!((0..8).all(|word| region.load_u64(link + 8 * word) == 7), "a linked block is filled");
        }
    };
    let heap =
        Heap::format(any(Hooked { region: &region, hook: Watch(&watch) }), &HeapOptions::new()).unwrap();
    let slots = heap.transact(|tx| tx.alloc_zeroed::<u64>(8).map(Link::offset)).unwrap();
    slot.store(slots, Ordering::SeqCst);
    heap.view(|view| view.alloc_and_link(link_to(slots), &[7_u64; 8]).map(drop)).unwrap();
    assert!(looks.load(Ordering::SeqCst) > 0);
}

/// A block may be longer than requested, and a link to an array element may point to the excess. A freed block may be allocated by another thread.
#[test]
fn write_past_end_of_new_value_is_dropped_with_its_block() {
    // One chunk for both threads.
    let heap = heap(&HeapOptions::new().lanes(2).lane_entries(16).chunk_bytes(1 << 21));
    let mut other = 0;
    let first: Result<(), TxError> = heap.transaction(|tx| {
        let short = tx.alloc_slice(&[1_u8; 10])?;
        tx.write(short.element(20), &7)?;
        tx.free(short)?;
        let alloc = || heap.transaction(|tx| tx.alloc_slice(&[2_u8; 56]).map(Link::offset));
        let block = std::thread::scope(|scope| scope.spawn(alloc).join().unwrap());
        other = block.map_err(|error: TxError| error).unwrap();
        assert_eq!(other, short.offset());
        Ok(())
    });
    first.unwrap();
    let mut found = [0; 56];
    heap.view(|view| view.read_bytes(link_to(other), &mut found)).unwrap();
    assert_eq!(found, [2; 56]);
}

/// As above, with a block longer than a chunk. Such a block is one line longer than needed if it would otherwise end at the end of a chunk.
#[test]
fn write_past_end_of_new_huge_value_is_dropped_with_its_block() {
    const CHUNK_BYTES: u64 = 4096;
    let options = HeapOptions::new().lanes(2).lane_entries(16).chunk_bytes(CHUNK_BYTES);
    let heap = Heap::format(Region::anonymous(1 << 17).unwrap(), &options).unwrap();
    let mut hit = None;
    let first: Result<(), TxError> = heap.transaction(|tx| {
        let long = tx.alloc_uninit::<u8>(CHUNK_BYTES - 8)?;
        let spare = long.offset() + CHUNK_BYTES;
        tx.write(long.element(CHUNK_BYTES + 3), &7)?;
        tx.free(long)?;
        let alloc = || heap.transaction(|tx| tx.alloc_slice(&[2_u8; 56]).map(Link::offset));
        let mut blocks = core::iter::from_fn(|| alloc().map_err(|_: TxError| ()).ok());
        hit = std::thread::scope(|scope| scope.spawn(move || blocks.find(|&at| at == spare)).join().unwrap());
        Ok(())
    });
    first.unwrap();
    let mut found = [0; 56];
    heap.view(|view| view.read_bytes(link_to(hit.unwrap()), &mut found)).unwrap();
    assert_eq!(found, [2; 56]);
}
