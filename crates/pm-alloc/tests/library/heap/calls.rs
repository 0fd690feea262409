//! Calls of views and transactions: blocks of all lengths and alignments, corrupted headers, and calls by many threads at once.

use super::prelude::*;
use pm_alloc::View;
use pm_core::Persist;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

const SLOTS: u64 = 64;

type Block = [u64; 24];
type Slot<'p> = Link<'p, Link<'p, Block>>;

/// A heap with one arena and some slots.
fn heap_with(options: &HeapOptions) -> Heap {
    heap_in(1 << 19, options)
}

fn heap_in(region_bytes: u64, options: &HeapOptions) -> Heap {
    let heap = Heap::format(Region::anonymous(region_bytes).unwrap(), options).unwrap();
    heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<Link<Block>>(SLOTS)?;
        tx.set_root("slots", slots)?;
        let long = tx.alloc_zeroed::<[u64; 64]>(1)?;
        tx.set_root("long", long)
    })
    .unwrap();
    heap
}

fn heap() -> Heap {
    heap_with(&options())
}

fn options() -> HeapOptions {
    HeapOptions::new().lanes(2).lane_entries(64).chunk_bytes(1 << 16)
}

fn slot<'p, P: Pmem>(view: &View<'p, P>, number: u64) -> Slot<'p> {
    view.root::<Link<'p, Block>>("slots").unwrap().unwrap().element(number)
}

/// Asserts that no block is leaked or corrupted: the allocated blocks are those of the two roots, and those that slots link to.
fn check(heap: &Heap) {
    assert_clean(heap);
    let reachable = heap.view(|view| {
        let slots =
            (0..SLOTS).map(|number| view.read(slot(view, number)).unwrap()).filter(|link| !link.is_null());
        let roots = [slot(view, 0).offset(), view.root::<[u64; 64]>("long").unwrap().unwrap().offset()];
        slots.map(|link| link.offset()).chain(roots).collect::<BTreeSet<_>>()
    });
    assert_eq!(heap.blocks().into_iter().collect::<BTreeSet<_>>(), reachable);
}

/// As many blocks as there is room for can be allocated, and no more: of an empty heap, and of one with gaps, also after an open.
#[test]
fn room_is_what_can_be_allocated() {
    const LENGTH: u64 = 6000;
    let region = Arc::new(Region::anonymous(1 << 20).unwrap());
    let heap = Heap::format(Arc::clone(&region), &options()).unwrap();
    let room_for = |heap: &Heap<Arc<Region>>, bytes| heap.room_for(bytes).unwrap();
    assert_eq!(room_for(&heap, u64::MAX), 0);
    // Longer than a chunk with its header: two chunks for each.
    let huge = room_for(&heap, 1 << 16);
    assert!(huge > 4, "{huge}");
    let allocate = |heap: &Heap<Arc<Region>>, bytes| {
        std::iter::from_fn(|| heap.transaction(|tx| tx.alloc_uninit::<u8>(bytes).map(Link::offset)).ok())
            .collect::<Vec<_>>()
    };
    let free =
        |heap: &Heap<Arc<Region>>, block: u64| heap.transact(|tx| tx.free(link_to::<u8>(block))).unwrap();
    let blocks = allocate(&heap, 1 << 16);
    assert_eq!((blocks.len() as u64, room_for(&heap, 1 << 16)), (huge, 0));
    blocks.iter().for_each(|block| free(&heap, *block));
    assert_eq!(room_for(&heap, 1 << 16), huge);
    let room = room_for(&heap, LENGTH);
    let blocks = allocate(&heap, LENGTH);
    assert_eq!((blocks.len() as u64, room_for(&heap, LENGTH)), (room, 0));
    blocks.iter().for_each(|block| free(&heap, *block));
    assert_eq!(room_for(&heap, LENGTH), room);
    // Gaps of one to seven blocks.
    let short = allocate(&heap, 1500);
    let mut left = 3;
    for (number, block) in short.iter().enumerate() {
        left = if left == 0 { number * 7 % 8 } else { left - 1 };
        if left > 0 {
            free(&heap, *block);
        }
    }
    let room = room_for(&heap, LENGTH);
    assert!(room > 20 && room < heap.stats().free_bytes / LENGTH, "{room} of {:?}", heap.stats());
    drop(heap);
    let heap = Heap::attach(region, &options()).unwrap();
    assert_eq!(room_for(&heap, LENGTH), room);
    assert_eq!((allocate(&heap, LENGTH).len() as u64, room_for(&heap, LENGTH)), (room, 0));
}

#[test]
fn block_that_contains_its_own_slot_can_be_freed() {
    let heap = heap();
    heap.view(|view| {
        for _ in 0..100 {
            let block = view.alloc_and_link(slot(view, 0), &[0; 24]).unwrap();
            // The link moves into the block itself.
            let inside = block.offset() + 8 * 23;
            view.store_u64(link_to(inside), block.offset()).unwrap();
            view.store_u64(link_to(slot(view, 0).offset()), 0).unwrap();
            view.unlink_and_free(link_to::<Link<Block>>(inside)).unwrap();
        }
    });
    check(&heap);
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C, align(256))]
struct Aligned {
    words: [u64; 32],
}

#[test]
fn blocks_of_all_lengths_and_alignments_can_be_linked_and_freed() {
    let heap = heap();
    heap.view(|view| {
        let at = slot(view, 0).offset();
        for count in [0, 1, 7, 23, 24, 512, 4095, 8190, 8191, 8192, 20_000] {
            let slot = link_to::<Link<u64>>(at);
            let block = view.alloc_uninit_and_link(slot, count).unwrap();
            (0..count).for_each(|number| heap.pool().pmem().store_u64(block.element(number).offset(), !0));
            view.unlink_and_free(slot).unwrap();
        }
        for count in [1 << 20, u64::MAX / 8, u64::MAX] {
            let error = view.alloc_uninit_and_link(link_to::<Link<u64>>(at), count).unwrap_err();
            assert!(matches!(error, TxError::Space(_)), "{error}");
        }
        let nothing = link_to::<Link<[u64; 0]>>(at);
        view.alloc_and_link(nothing, &[]).unwrap();
        view.unlink_and_free(nothing).unwrap();
        view.alloc_uninit_and_link(nothing, u64::MAX).unwrap();
        view.unlink_and_free(nothing).unwrap();
        let aligned = link_to::<Link<Aligned>>(at);
        for _ in 0..20 {
            let block = view.alloc_and_link(aligned, &Aligned { words: [3; 32] }).unwrap();
            assert!(block.offset().is_multiple_of(256));
            assert_eq!(view.read(block).unwrap(), Aligned { words: [3; 32] });
            view.unlink_and_free(aligned).unwrap();
        }
    });
    check(&heap);
}

thread_local! {
    static AT_EXIT: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

struct AtExit(Arc<Heap>, mpsc::Sender<bool>);

impl Drop for AtExit {
    fn drop(&mut self) {
        let heap = &self.0;
        let result = heap.view(|view| {
            view.unlink_and_free(slot(view, 0))?;
            view.alloc_and_link(slot(view, 1), &[8; 24]).map(drop)
        });
        let result = result.and_then(|()| {
            heap.transaction(|tx| {
                let long = tx.root::<[u64; 64]>("long")?.unwrap();
                tx.write(long, &[9; 64])
            })
        });
        self.1.send(result.is_ok()).unwrap();
    }
}

/// The thread-local state of transactions may be destroyed before the destructor runs.
#[test]
fn destructor_of_thread_local_can_use_heap() {
    let heap = Arc::new(heap());
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn({
        let heap = Arc::clone(&heap);
        move || {
            AT_EXIT.set(Some(AtExit(Arc::clone(&heap), sender)));
            heap.view(|view| view.alloc_and_link(slot(view, 0), &[8; 24]).map(drop)).unwrap();
            heap.transaction(|tx| tx.alloc(&1_u64).and_then(|block| tx.free(block))).unwrap();
        }
    });
    thread.join().unwrap();
    assert!(receiver.recv().unwrap());
    check(&heap);
    heap.view(|view| {
        let long = view.root::<[u64; 64]>("long").unwrap().unwrap();
        assert_eq!(view.read(long).unwrap(), [9; 64]);
    });
}

/// Runs `f`, and aborts the process if `f` takes longer than 20 seconds, as after a deadlock.
fn in_time<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<()>();
        scope.spawn(move || {
            if receiver.recv_timeout(Duration::from_secs(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("deadlock");
                std::process::abort();
            }
        });
        let result = f();
        drop(sender);
        result
    })
}

/// Runs four threads, and aborts the process if they deadlock.
fn four_threads(run: impl Fn(u64) + Sync) {
    let run = &run;
    in_time(|| {
        std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || run(thread)))));
    });
}

/// The heap has few lanes and one arena. Threads hold a lane while they acquire the arena.
#[test]
fn threads_that_share_few_lanes_do_not_deadlock() {
    for lanes in [1, 2, 3] {
        let heap = heap_with(&options().lanes(lanes).lane_entries(32).in_place_from_bytes(128));
        four_threads(|thread| work(&heap, thread));
        check(&heap);
    }
}

fn work(heap: &Heap, thread: u64) {
    let mut random = Rng::of(thread);
    let own = SLOTS / 4;
    for _ in 0..3000 {
        let number = thread * own + random.below(own);
        let kind = random.below(8);
        let length = 1 + random.below(12);
        let result: Result<(), TxError> = heap.view(|view| {
            let at = slot(view, number);
            let is_null = view.read(at)?.is_null();
            match (kind, is_null) {
                (0, true) => view.alloc_and_link(at, &[number; 24]).map(drop),
                (1..=3, true) => {
                    let block = view.alloc_uninit_and_link(at, length)?;
                    let pmem = heap.pool().pmem();
                    for word in 0..24 * length {
                        pmem.store_u64(block.offset() + 8 * word, !0);
                    }
                    Ok(())
                }
                (0..=3, false) => view.unlink_and_free(at),
                (4, _) => {
                    let unused = view.root::<[u64; 64]>("long")?.unwrap();
                    let word = link_to(unused.offset() + 8 * (56 + thread));
                    view.store_u64(word, number)
                }
                _ => Ok(()),
            }
        });
        result.unwrap();
        if kind < 5 {
            continue;
        }
        let result: Result<(), TxError> = heap.transaction(|tx| {
            let at = tx.root::<Link<'_, Block>>("slots")?.unwrap().element(number);
            let linked = tx.read(at)?;
            if !linked.is_null() {
                if kind == 6 {
                    // This write is made in place, after undo entries, for which it acquires a lane.
                    tx.write(linked, &[number; 24])?;
                }
                tx.free(linked)?;
            }
            let block = tx.alloc(&[number; 24])?;
            let other = tx.alloc_zeroed::<Block>(length)?;
            tx.write(at, &block)?;
            tx.free(other)?;
            if kind == 7 { Err(TxError::RolledBack("no".into())) } else { Ok(()) }
        });
        assert!(kind == 7 || result.is_ok(), "{result:?}");
    }
}

/// The transaction that owns the only lane makes the call.
#[test]
fn word_is_stored_while_transaction_owns_only_lane() {
    let heap = heap_with(&options().lanes(1).in_place_from_bytes(128));
    in_time(|| {
        // The log may still replay slot 1. The word below is in the same line, so it must not be overwritten without the log.
        heap.view(|view| {
            view.alloc_and_link(slot(view, 1), &[1; 24]).and_then(|_| view.unlink_and_free(slot(view, 1)))
        })?;
        heap.transaction(|tx| {
            let long = tx.root::<[u64; 64]>("long")?.unwrap();
            tx.write(long, &[1; 64])?;
            heap.view(|view| {
                let word = link_to(slot(view, 0).offset());
                view.store_u64(word, 1)?;
                view.store_u64(word, 0)
            })
        })
    })
    .map_err(|error: TxError| error)
    .unwrap();
    check(&heap);
}

#[test]
fn block_with_corrupted_header_is_not_allocated() {
    let heap = heap();
    let pmem = heap.pool().pmem();
    let corrupted = heap.view(|view| {
        // Every second block is freed. Later commits overwrite the log entries of the blocks.
        let blocks: Vec<u64> = (0..16)
            .map(|number| view.alloc_uninit_and_link(slot(view, number), 1).unwrap().offset())
            .collect();
        (0..16).step_by(2).for_each(|number| view.unlink_and_free(slot(view, number)).unwrap());
        for _ in 0..80 {
            view.alloc_uninit_and_link(slot(view, 20), 30).unwrap();
            view.unlink_and_free(slot(view, 20)).unwrap();
        }
        let corrupted = [blocks[4], blocks[8]];
        for block in corrupted {
            pmem.store_u64(block - 8, pmem.load_u64(block - 8) ^ 1 << 20);
        }
        // This would coalesce the freed block with the free block after it, if the header of that one were intact.
        view.unlink_and_free(slot(view, 3)).unwrap();
        let new: Vec<u64> = (20..60)
            .map(|number| view.alloc_uninit_and_link(slot(view, number), 1).unwrap().offset())
            .collect();
        assert!(new.contains(&blocks[12]), "intact free blocks are allocated");
        assert!(new.iter().all(|block| !corrupted.contains(block)), "{new:?} and {corrupted:?}");
        let mut all: Vec<u64> = (0..16).filter(|number| number % 2 == 1 && *number != 3).collect();
        all.extend(20..60);
        all.into_iter().for_each(|number| view.unlink_and_free(slot(view, number)).unwrap());
        corrupted
    });
    let report = heap.check();
    let is_found = |block| report.corruptions.iter().any(|corruption| corruption.extent.contains(block));
    assert!(corrupted.iter().all(is_found), "{corrupted:?} and {report:?}");
    assert_eq!(report.allocated_blocks, 2);
}

/// Blocks of all lengths, some longer than a chunk, are freed by any thread, and keep their contents until then.
#[test]
fn threads_free_each_others_blocks() {
    let options = HeapOptions::new().lanes(2).lane_entries(64).chunk_bytes(1 << 14);
    let heap = heap_in(4 << 20, &options);
    let locks: Vec<Mutex<u64>> = (0..SLOTS).map(|_| Mutex::new(0)).collect();
    four_threads(|thread| exchange(&heap, &locks, thread));
    check(&heap);
}

/// The lock of each slot guards the number of words in its block.
fn exchange(heap: &Heap, locks: &[Mutex<u64>], thread: u64) {
    let pmem = heap.pool().pmem();
    let mut random = Rng::of(thread);
    for _ in 0..4000 {
        let number = random.below(SLOTS);
        let mut words = locks[usize::try_from(number).unwrap()].lock().unwrap();
        heap.view(|view| {
            let at = link_to::<Link<u64>>(slot(view, number).offset());
            if *words > 0 {
                let block = view.read(at).unwrap().offset();
                let held = (0..*words).map(|word| block + 8 * word);
                let changed = held.clone().find(|&offset| pmem.load_u64(offset) != block + number);
                assert_eq!(changed, None, "in the block of {words} words at {block}");
                view.unlink_and_free(at).unwrap();
                *words = 0;
                return;
            }
            *words = 1 + match random.below(20) {
                0 => random.below(6000),
                1..5 => random.below(600),
                _ => random.below(60),
            };
            let block = view.alloc_uninit_and_link(at, *words).unwrap().offset();
            (0..*words).for_each(|word| pmem.store_u64(block + 8 * word, block + number));
        });
    }
}

/// At any time at most one block is allocated.
#[test]
fn freed_blocks_are_reused_before_new_chunks() {
    let heap = heap_in(16 << 20, &options());
    let chunks = |alloc: &dyn Fn(&View<'_, Region>) -> u64| {
        heap.view(|view| {
            let offsets = (0..500).map(|_| {
                let offset = alloc(view);
                view.unlink_and_free(slot(view, 0)).unwrap();
                offset
            });
            offsets.map(|offset| heap.layout().chunk_of(offset)).collect::<BTreeSet<_>>().len()
        })
    };
    // More than half of a chunk, so that no chunk has room for two.
    assert!(chunks(&|view| view.alloc_uninit_and_link(slot(view, 0), 200).unwrap().offset()) <= 4);
    let in_a_transaction = |view: &View<'_, Region>| {
        heap.transact(|tx| {
            let block = tx.alloc_uninit::<Block>(200)?;
            let slot = tx.root::<Link<'_, Block>>("slots")?.unwrap();
            tx.write(slot, &block)
        })
        .unwrap();
        view.read(slot(view, 0)).unwrap().offset()
    };
    assert!(chunks(&in_a_transaction) <= 4);
}

#[test]
fn invalid_alignment_panics_and_leaves_heap_usable() {
    let heap = heap();
    for align_bytes in [0, 3, 65] {
        let alloc = || heap.transaction(|tx| tx.alloc_aligned::<u64>(1, align_bytes).map(drop));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(alloc)).is_err());
    }
    heap.view(|view| view.alloc_and_link(slot(view, 0), &[1; 24]).map(drop)).unwrap();
    check(&heap);
}

/// A new heap has one free extent for each chunk. The transaction allocates all blocks from the same extent.
#[test]
fn transaction_allocates_until_its_lane_is_full() {
    let heap = Heap::format(Region::anonymous(64 << 20).unwrap(), &HeapOptions::new()).unwrap();
    let allocate = |count: u64| {
        heap.transaction(|tx| {
            let blocks = (0..count).map(|_| tx.alloc_uninit::<[u64; 9]>(1).map(Link::offset));
            blocks.collect::<Result<Vec<u64>, TxError>>()
        })
    };
    let blocks = allocate(1500).unwrap();
    assert_eq!(blocks, (0..1500).map(|number| blocks[0] + 128 * number).collect::<Vec<u64>>());
    assert_eq!(heap.blocks(), blocks);
    assert!(matches!(allocate(2000), Err(TxError::Commit(CommitError::TooLarge { .. }))));
    assert_eq!((heap.blocks(), heap.stats().reservations), (blocks, 0));
    assert_clean(&heap);
}

#[test]
fn block_has_at_least_the_alignment_of_its_type() {
    let heap = heap();
    for align_bytes in [1, 64, 256, 512].repeat(3) {
        let allocated = heap.transaction(|tx| {
            let link = tx.alloc_aligned::<Aligned>(1, align_bytes)?;
            tx.write(link, &Aligned { words: [7; 32] })?;
            Ok::<_, TxError>((link.offset(), tx.read(link)?))
        });
        let (offset, value) = allocated.unwrap();
        assert!(offset.is_multiple_of(align_bytes.max(256)));
        assert_eq!(value, Aligned { words: [7; 32] });
    }
}

#[test]
fn uninitialized_block_is_aligned_and_not_stored_to() {
    let region = Arc::new(pm_core::Counting::new(Region::anonymous(1 << 20).unwrap()));
    region.store(0, &[0xEE; 1 << 20]);
    let heap = Heap::format(any(&region), &options()).unwrap();
    for align_bytes in [1, 64, 256, 4096] {
        let block =
            heap.transact(|tx| tx.alloc_uninit_aligned::<Aligned>(3, align_bytes).map(Link::offset)).unwrap();
        assert!(block.is_multiple_of(align_bytes.max(256)));
        let mut contents = [0; 3 * size_of::<Aligned>()];
        heap.pmem().load(block, &mut contents);
        assert!(contents.iter().all(|&byte| byte == 0xEE), "no transaction has stored there");
    }
    let ((), cost) = region.count(|| {
        heap.transact(|tx| tx.alloc_uninit_aligned::<u8>(5000, 2048).map(drop)).unwrap();
    });
    assert_eq!(cost.fences, 1);
    assert_clean(&heap);
}

#[test]
fn lost_bytes_count_blocks_with_corrupted_headers() {
    for bytes in [500, 150_000] {
        let region = Region::anonymous(1 << 18).unwrap();
        let heap = Heap::format(any(&region), &HeapOptions::new().chunk_bytes(4096)).unwrap();
        let block = heap.transact(|tx| tx.alloc_uninit::<u8>(bytes).map(Link::offset)).unwrap();
        region.store_u64(block - 8, 1);
        let freed = heap.transaction(|tx| tx.free(link_to::<u8>(block)));
        assert!(matches!(freed, Err(TxError::Free(_))), "{freed:?}");
        assert!(heap.stats().lost_bytes >= bytes);
    }
}
