//! A fence fails in one thread while another thread is about to reserve an extent.

use super::prelude::*;
use core::cell::Cell;
use std::sync::{Condvar, Mutex};

thread_local! {
    /// The number of fences of this thread that succeed before one fails. `None` if no fence fails.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    /// Whether the next load of this thread waits.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Fails one fence of one thread, while another thread waits in a load.
struct Failing {
    phase: Mutex<u32>,
    changed: Condvar,
}

impl Failing {
    fn new() -> Arc<Self> {
        Arc::new(Self { phase: Mutex::new(0), changed: Condvar::new() })
    }
    fn reach(&self, phase: u32) {
        *self.phase.lock().unwrap() = phase;
        self.changed.notify_all();
    }
    fn wait_for(&self, phase: u32) {
        let _reached = self.changed.wait_while(self.phase.lock().unwrap(), |now| *now < phase).unwrap();
    }
}

impl Hook<Arc<SampledPmem>> for Failing {
    fn before_load_u64(&self, _: u64) {
        if WAITS.take() {
            self.reach(2);
            self.wait_for(3);
        }
    }
    fn fence(&self, region: &Arc<SampledPmem>) -> Result<(), FenceError> {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                self.reach(1);
                self.wait_for(2);
                return Err(FenceError::Poisoned);
            }
            Some(left) => LEFT.set(Some(left - 1)),
            None => {}
        }
        region.fence()
    }
}

const CHUNK_LINES: u64 = 512;

fn alloc<P: Pmem>(heap: &Heap<P>, lines: u64) -> Result<u64, TxError> {
    heap.transaction(|tx| Ok(tx.alloc_slice(&vec![7_u64; 8 * usize::try_from(lines).unwrap() - 1])?.offset()))
}

/// After the next open the transaction is either committed, with all contents of its block, or rolled back.
#[test]
fn transaction_with_failed_fence_is_atomic_while_extent_is_trimmed() {
    let (lines, other_lines) = (450_u64, 8);
    let options = HeapOptions::new().seed(7).lanes(2).lane_entries(30).chunk_bytes(64 * CHUNK_LINES);
    let sim = Arc::new(SampledPmem::new(256 << 10));
    let heap = Heap::format(any(Arc::clone(&sim)), &options).unwrap();
    let mut blocks = vec![];
    while let Ok(block) = alloc(&heap, CHUNK_LINES - 1) {
        blocks.push(block);
    }
    blocks.sort_unstable();
    let free_chunks = (lines + 1).div_ceil(CHUNK_LINES);
    for &block in &blocks[..usize::try_from(free_chunks).unwrap()] {
        heap.transact(|tx| tx.free(link_to::<u64>(block))).unwrap();
    }
    drop(heap);
    let (sim, hook) = (Arc::new(SampledPmem::of(sim.state())), Failing::new());
    let heap = Heap::attach(any(Hooked::new(Arc::clone(&sim), Arc::clone(&hook))), &options).unwrap();
    let block = Cell::new(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            hook.wait_for(1);
            WAITS.set(true);
            alloc(&heap, other_lines)
        });
        let failed: Result<(), TxError> = heap.transaction(|tx| {
            block.set(tx.alloc_slice(&vec![7_u64; 8 * usize::try_from(lines).unwrap() - 1])?.offset());
            LEFT.set(Some(1));
            Ok(())
        });
        assert!(matches!(failed, Err(TxError::Commit(_))), "{failed:?}");
        hook.reach(3);
        assert!(other.join().unwrap().is_err(), "the heap refuses after a failed fence");
    });
    // The process is killed, or ends without closing the heap.
    let state = sim.state();
    core::mem::forget(heap);
    let sim = Arc::new(SampledPmem::of(state));
    let heap = Heap::attach(any(Arc::clone(&sim)), &options).unwrap();
    assert_clean(&heap);
    if heap.blocks().contains(&block.get()) {
        for word in 0..8 * lines - 1 {
            let found = sim.load_u64(block.get() + 8 * word);
            assert_eq!(found, 7, "word {word} of the block is that of the committed transaction");
        }
    }
}
