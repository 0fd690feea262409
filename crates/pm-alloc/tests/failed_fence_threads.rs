//! A fence that fails in one thread, while another one raises the checkpoint LSN over the first one's lane.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sim;

use core::cell::Cell;
use pm_alloc::{CommitError, Heap, HeapOptions, TxError};
use pm_core::{Domain, FenceError, Link, Pmem, PoolOptions, Uuid};
use sim::Sim;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    /// Whether this thread's fences fail.
    static FAILS: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread's next flush lets the other one go on, and waits until that is done.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// A region in which fences fail in one thread only, between a flush of another one and its fence.
struct FailingOnce {
    sim: Sim,
    other: Mutex<Option<(SyncSender<()>, Receiver<()>)>>,
}

impl Pmem for FailingOnce {
    fn len_bytes(&self) -> u64 {
        self.sim.len_bytes()
    }
    fn domain(&self) -> Domain {
        Domain::Page
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.sim.load(offset, out);
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.sim.store(offset, bytes);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.sim.store_nt(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.sim.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.sim.store_u64(offset, value);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.sim.store_u128(offset, value);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.sim.compare_exchange_u64(offset, current, new)
    }
    fn flush(&self, offset: u64, len: u64) {
        self.sim.flush(offset, len);
        if WAITS.take() {
            let (go_on, is_done) = self.other.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap();
            go_on.send(()).unwrap();
            is_done.recv().unwrap();
        }
    }
    fn fence(&self) -> Result<(), FenceError> {
        if FAILS.get() { Err(FenceError::Poisoned) } else { self.sim.fence() }
    }
}

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(32).chunk_bytes(4096).in_place_from_bytes(64)
}

#[test]
fn checkpoint_is_not_raised_over_failed_fence() {
    let (go_on, may_go_on) = sync_channel(0);
    let (done, is_done) = sync_channel(0);
    let pmem = FailingOnce { sim: Sim::new(1 << 16), other: Mutex::new(Some((go_on, is_done))) };
    let heap = Heap::format(Arc::new(pmem), &options()).unwrap();
    let blocks = heap.transaction(|tx| {
        let blocks = [tx.alloc_zeroed::<u64>(40)?, tx.alloc_zeroed(40)?, tx.alloc_zeroed(40)?];
        tx.set_root("word", blocks[0])?;
        Ok(blocks.map(Link::offset))
    });
    let blocks = blocks.map_err(|error: TxError| error).unwrap();
    heap.checkpoint().unwrap();
    let write = |at: usize, value: u64| {
        let written = heap.transaction(|tx| tx.write(Link::vouched(blocks[at]), &value));
        written.map_err(|error: TxError| error)
    };
    let fill = |at: usize| heap.transaction(|tx| tx.write(Link::vouched(blocks[at]), &[9_u64; 20]));
    let (has_lane, other_has_lane) = sync_channel(0);
    let (acknowledged, is_acknowledged) = sync_channel(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            other_has_lane.recv().unwrap();
            write(0, 1).unwrap();
            acknowledged.send(()).unwrap();
            may_go_on.recv().unwrap();
            FAILS.set(true);
            // Its first fence is to make the word durable where it belongs, too.
            let failed: Result<(), TxError> = fill(2);
            assert!(matches!(failed, Err(TxError::Commit(CommitError::Fence(_)))), "{failed:?}");
            done.send(()).unwrap();
        });
        let in_the_other_lane: Result<(), TxError> = heap.transaction(|tx| {
            tx.write(Link::vouched(blocks[1]), &[9_u64; 20])?;
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
    let left = heap.pool().pmem().sim.power_failure();
    let heap = Heap::attach(Arc::new(Sim::of(left)), &options()).unwrap();
    let found = heap.view(|view| view.read(view.root::<u64>("word").unwrap().unwrap()).unwrap());
    assert_eq!(found, 1, "the transaction was acknowledged");
}
