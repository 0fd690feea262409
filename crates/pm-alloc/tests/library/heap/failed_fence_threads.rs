//! A fence fails in one thread while another thread computes a checkpoint LSN that covers the groups of the first thread's lane.

use super::prelude::*;
use core::cell::Cell;
use core::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

thread_local! {
    /// Whether this thread's fences fail.
    static FAILS: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread's next flush lets the other thread continue, and waits for it.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Fails the fences of one thread, at a time between a flush and the fence of another thread.
struct FailingThread {
    other: Mutex<Option<(SyncSender<()>, Receiver<()>)>>,
}

impl Hook<Arc<SampledPmem>> for FailingThread {
    fn after_flush(&self, _: Range<u64>) {
        if WAITS.take() {
            let (go_on, is_done) = self.other.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap();
            go_on.send(()).unwrap();
            is_done.recv().unwrap();
        }
    }
    fn fence(&self, region: &Arc<SampledPmem>) -> Result<(), FenceError> {
        if FAILS.get() { Err(FenceError::Poisoned) } else { region.fence() }
    }
}

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(32).chunk_bytes(4096).in_place_from_bytes(64)
}

#[test]
fn checkpoint_lsn_is_not_raised_after_failed_fence_in_other_thread() {
    let (go_on, may_go_on) = sync_channel(0);
    let (done, is_done) = sync_channel(0);
    let hook = FailingThread { other: Mutex::new(Some((go_on, is_done))) };
    let sim = Arc::new(SampledPmem::new(1 << 16));
    let pmem = Hooked::new(Arc::clone(&sim), hook);
    let heap = Heap::format(any(pmem), &options()).unwrap();
    let blocks = heap
        .transact(|tx| {
            let blocks = [tx.alloc_zeroed::<u64>(40)?, tx.alloc_zeroed(40)?, tx.alloc_zeroed(40)?];
            tx.set_root("word", blocks[0])?;
            Ok(blocks.map(Link::offset))
        })
        .unwrap();
    heap.checkpoint().unwrap();
    let write = |at: usize, value: u64| heap.transact(|tx| tx.write(link_to(blocks[at]), &value));
    let fill = |at: usize| heap.transaction(|tx| tx.write(link_to(blocks[at]), &[9_u64; 20]));
    let (has_lane, other_has_lane) = sync_channel(0);
    let (acknowledged, is_acknowledged) = sync_channel(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            other_has_lane.recv().unwrap();
            write(0, 1).unwrap();
            acknowledged.send(()).unwrap();
            may_go_on.recv().unwrap();
            FAILS.set(true);
            // The first fence of this transaction also covers the word of the lane's previous transaction.
            let failed: Result<(), TxError> = fill(2);
            assert!(matches!(failed, Err(TxError::Commit(CommitError::Fence(_)))), "{failed:?}");
            done.send(()).unwrap();
        });
        let in_the_other_lane: Result<(), TxError> = heap.transaction(|tx| {
            tx.write(link_to(blocks[1]), &[9_u64; 20])?;
            has_lane.send(()).unwrap();
            is_acknowledged.recv().unwrap();
            Ok(())
        });
        in_the_other_lane.unwrap();
        write(1, 3).unwrap();
        WAITS.set(true);
        let refused = heap.checkpoint();
        assert!(matches!(refused, Err(CommitError::Fence(_))), "{refused:?}");
    });
    let left = sim.power_failure();
    let heap = Heap::attach(any(Arc::new(SampledPmem::of(left))), &options()).unwrap();
    let found = heap.view(|view| view.read(view.root::<u64>("word").unwrap().unwrap()).unwrap());
    assert_eq!(found, 1, "the acknowledged transaction is durable");
}
