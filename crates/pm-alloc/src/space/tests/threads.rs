//! Several threads: blocks do not overlap.

use super::fixture::{Heap, Random, allocate_unlogged};
use crate::format::Lsn;
use crate::space::{FreeError, SpaceError, SpaceOptions, Unlogged};
use pm_core::Pmem;
use std::sync::Mutex;

/// Each thread fills its blocks with its number. When any thread frees a block, the block contains only its owner's number.
#[test]
fn blocks_of_threads_do_not_overlap() {
    let options = SpaceOptions { arena_count: Some(3), ..SpaceOptions::default() };
    let heap = Heap::with(24, 4096, options);
    let (space, region) = (&heap.space, &heap.region);
    let shared = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let shared = &shared;
            scope.spawn(move || {
                let mut random = Random(u64::from(thread) << 32 | 1);
                for _ in 0..4000 {
                    let lines =
                        if random.below(50) == 0 { 64 + random.below(80) } else { 1 + random.below(20) };
                    match allocate_unlogged(space, region, lines, 64 << random.below(2)) {
                        Ok(payload) => {
                            let usable = space.usable_bytes(region, payload).unwrap();
                            region.store(payload, &vec![thread; usize::try_from(usable).unwrap()]);
                            shared.lock().unwrap().push((payload, thread));
                        }
                        Err(SpaceError::Full { .. } | SpaceError::Alignment { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    let mut shared = shared.lock().unwrap();
                    if shared.len() < 40 && random.below(3) > 0 {
                        continue;
                    }
                    let index = usize::try_from(random.below(shared.len().max(1) as u64)).unwrap();
                    if index < shared.len() {
                        let (payload, owner) = shared.swap_remove(index);
                        drop(shared);
                        let usable = space.usable_bytes(region, payload).unwrap();
                        let mut bytes = vec![0; usize::try_from(usable).unwrap()];
                        region.load(payload, &mut bytes);
                        assert!(bytes.iter().all(|byte| *byte == owner), "{payload:#x} of {owner}");
                        Unlogged::new(space, region, false).free(payload).unwrap();
                    }
                }
            });
        }
    });
    let mut heap = heap;
    let left = std::mem::take(&mut *shared.lock().unwrap());
    heap.blocks = left.iter().map(|(payload, _)| (*payload, heap.header(*payload).unwrap().lines)).collect();
    heap.check();
    assert_eq!(heap.space.take_corruption(), []);
    heap.reopen();
    for (payload, _) in left {
        heap.free(payload);
    }
    for _ in 0..24 {
        heap.allocate(63, 64).unwrap();
    }
}

#[test]
fn concurrent_double_free_succeeds_once() {
    let mut heap = Heap::new(4, 4096);
    for lines in [2, 100] {
        let payload = heap.allocate(lines, 64).unwrap();
        let (space, region) = (&heap.space, &heap.region);
        let won: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| space.begin_free(region, payload))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (won, lost): (Vec<_>, Vec<_>) = won.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 7));
        for error in lost {
            assert_eq!(error.unwrap_err(), FreeError::AlreadyFree { offset: payload });
        }
        for freeing in won.into_iter().map(Result::unwrap) {
            heap.commit_free(freeing, Lsn::ZERO);
            heap.blocks.remove(&payload).unwrap();
        }
    }
}
