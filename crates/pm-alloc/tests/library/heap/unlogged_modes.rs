//! An unlogged heap that is not durable is dropped, or its process is killed. Later handles of the heap rely on its blocks.

use super::prelude::*;

type SimHeap = Heap<AnyPmem<'static>>;
type Unlogged = UnloggedHeap<AnyPmem<'static>>;

/// How the process ends: it drops the unlogged heap, or it is killed and closes nothing.
const ENDS: [fn(Unlogged); 2] = [drop::<Unlogged>, core::mem::forget::<Unlogged>];

fn options() -> HeapOptions {
    HeapOptions::new().lanes(1).lane_entries(30).chunk_bytes(4096).seed(7)
}

fn attach(sim: &Arc<SampledPmem>) -> SimHeap {
    Heap::attach(any(Arc::clone(sim)), &options()).unwrap()
}

/// A new heap, used without durability.
fn unlogged() -> (Arc<SampledPmem>, Unlogged) {
    let sim = Arc::new(SampledPmem::new(1 << 17));
    drop(Heap::format(any(Arc::clone(&sim)), &options()).unwrap());
    let heap = UnloggedHeap::new(attach(&sim));
    (sim, heap)
}

/// A heap with one block that was allocated unlogged, without durability.
fn with_unlogged_block(end: fn(Unlogged)) -> (Arc<SampledPmem>, u64) {
    let (sim, heap) = unlogged();
    let block = heap.alloc(500, 64).unwrap();
    end(heap);
    (sim, block)
}

fn after_power_failure(sim: &SampledPmem) -> SimHeap {
    Heap::attach(any(Arc::new(SampledPmem::of(sim.power_failure()))), &options()).unwrap()
}

#[test]
fn block_with_root_is_not_reallocated() {
    for end in ENDS {
        let (sim, block) = with_unlogged_block(end);
        let heap = attach(&sim);
        assert_eq!(heap.blocks(), [block]);
        heap.transact(|tx| {
            let link = link_to::<[u64; 8]>(block);
            tx.write(link, &[7; 8])?;
            tx.set_root("data", link)
        })
        .unwrap();
        let heap = after_power_failure(&sim);
        let rooted = heap.pool().find_root("data").unwrap().unwrap().offset();
        assert_eq!((rooted, heap.pool().pmem().load_u64(rooted)), (block, 7), "the transaction is durable");
        let other = heap.transact(|tx| tx.alloc(&[9_u64; 60]).map(Link::offset)).unwrap();
        assert!(
            heap.blocks().contains(&rooted) && other != rooted,
            "{rooted:#x} is live, and {other:#x} was allocated"
        );
    }
}

#[test]
fn block_of_earlier_handle_is_not_reallocated_by_durable_one() {
    for end in ENDS {
        let (sim, block) = with_unlogged_block(end);
        let heap = UnloggedHeap::new(attach(&sim)).durable(true);
        assert!(heap.usable_bytes(block).unwrap() >= 500);
        sim.store_u64(block, 7);
        sim.persist(block, 8).unwrap();
        let heap = UnloggedHeap::new(after_power_failure(&sim)).durable(true);
        assert_eq!(heap.heap().pool().pmem().load_u64(block), 7);
        let other = heap.alloc(500, 64).unwrap();
        assert!(
            heap.usable_bytes(block).is_ok() && other != block,
            "{block:#x} is live, and {other:#x} was allocated"
        );
    }
}

/// Reading the header of the long block makes that header durable. The header after the block must become durable, too.
#[test]
fn chain_after_long_block_is_durable() {
    for end in ENDS {
        let (sim, heap) = unlogged();
        heap.alloc(10_000, 64).unwrap();
        end(heap);
        let heap = attach(&sim);
        heap.transact(|tx| tx.alloc(&[9_u64; 20]).map(drop)).unwrap();
        let report = after_power_failure(&sim).check();
        assert!(report.is_clean(), "{:?}", report.corruptions);
    }
}

fn tx_alloc(heap: &SimHeap, lines: u64) -> u64 {
    let block = heap.transaction(|tx| Ok(tx.alloc_uninit::<u64>(8 * lines - 1)?.offset()));
    block.map_err(|error: TxError| error).unwrap()
}

fn tx_free(heap: &SimHeap, block: u64) {
    heap.transact(|tx| tx.free(link_to::<u64>(block))).unwrap();
}

/// An unlogged heap shrinks the block before a block that a transaction committed. Reading the first header of the chunk makes it durable. The header
/// after it, which overwrote an old header, must become durable, too.
#[test]
fn committed_block_after_shrunk_one_is_not_reallocated() {
    for end in ENDS {
        let sim = Arc::new(SampledPmem::new(1 << 17));
        let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
        let layout = *heap.layout();
        let line = |line: u64| layout.chunk_offset(0) + 64 * line;
        assert_eq!([tx_alloc(&heap, 5), tx_alloc(&heap, 40)], [line(1), line(6)]);
        tx_free(&heap, line(6));
        tx_free(&heap, line(1));
        drop(heap);
        let heap = attach(&sim);
        heap.scan_ahead(1 << 20).unwrap();
        assert_eq!(tx_alloc(&heap, 30), line(1));
        let made = heap.transaction(|tx| {
            let block = tx.alloc_slice(&[7_u64; 79])?;
            tx.set_root("data", block)?;
            Ok(block.offset())
        });
        let block = made.map_err(|error: TxError| error).unwrap();
        assert_eq!(block, line(31));
        drop(heap);
        let unlogged = UnloggedHeap::new(attach(&sim));
        assert_eq!(unlogged.resize(line(1), 1..=5 * 64 - 8, |_, _| true).unwrap(), Some(5 * 64 - 8));
        end(unlogged);
        let heap = attach(&sim);
        assert_clean(&heap);
        let other = tx_alloc(&heap, 3);
        assert!(other >= layout.chunk_offset(1), "in another chunk");
        let heap = after_power_failure(&sim);
        assert_eq!(heap.pool().find_root("data").unwrap().unwrap().offset(), block);
        let report = heap.check();
        let is_listed = heap.blocks().contains(&block);
        while let Ok(filled) = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc_slice(&[9_u64; 7])?.offset()))
        {
            assert!(
                filled < block || block + 640 <= filled,
                "{filled:#x} of the live block at {block:#x} was allocated; listed: {is_listed}, {:?}",
                report.corruptions
            );
        }
        assert!(is_listed);
    }
}

/// The first process is killed while it splits a freed block of two chunks: the header of the first chunk is stored, and not durable. In the second
/// process one thread freezes the heap, as for a fork, and another thread durably allocates from the second chunk.
#[test]
fn headers_read_by_freezing_thread_are_durable() {
    block_survives(true);
}

/// As above, but no thread freezes the heap.
#[test]
fn headers_read_by_allocating_thread_are_durable() {
    block_survives(false);
}

fn block_survives(freezes: bool) {
    let sim = Arc::new(SampledPmem::new(48 << 10));
    let heap = UnloggedHeap::new(Heap::format(any(Arc::clone(&sim)), &options()).unwrap()).durable(true);
    let first = heap.heap().layout().first_payload(0);
    assert_eq!(heap.alloc(64 * 70, 64).unwrap(), first);
    heap.free(first).unwrap();
    // The kill is right after the store of the last header of the split.
    sim.stop_at_change((first - 8) / 64 * 64);
    assert_eq!(heap.alloc(8, 64).unwrap(), first);
    let killed = sim.stopped().unwrap();
    core::mem::forget(heap);

    let sim = Arc::new(SampledPmem::of(killed));
    let heap = UnloggedHeap::new(attach(&sim)).durable(true);
    let layout = *heap.heap().layout();
    if freezes {
        drop(heap.freeze());
    }
    let block = std::thread::scope(|scope| {
        let other = || heap.alloc_if(64 * 40, 64, |offset, _| layout.chunk_of(offset) == Some(1)).unwrap();
        scope.spawn(other).join().unwrap()
    });
    assert_eq!(layout.chunk_of(block), Some(1));
    core::mem::forget(heap);

    let blocks = after_power_failure(&sim).blocks();
    assert!(blocks.contains(&block), "the durable block {block} is among {blocks:?}");
}

/// Blocks are allocated first without durability, then with it.
#[test]
fn durable_block_survives_after_volatile_ones() {
    let sim = Arc::new(SampledPmem::new(48 << 10));
    let heap = UnloggedHeap::new(Heap::format(any(Arc::clone(&sim)), &options()).unwrap());
    heap.alloc(64 * 8 - 8, 64).unwrap();
    let heap = heap.durable(true);
    let block = heap.alloc(64 * 4 - 8, 64).unwrap();
    core::mem::forget(heap);
    let blocks = after_power_failure(&sim).blocks();
    assert!(blocks.contains(&block), "the durable block {block} is among {blocks:?}");
}
