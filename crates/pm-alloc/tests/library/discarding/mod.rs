//! A small heap whose log entries a test corrupts and discards, and checks of its blocks. Each chunk has 64 lines, and the first block has eight
//! slots for links.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "each test program uses some of it; a test fails by panicking"
)]

use crate::harness::{self, Transact as _, assert_clean};
use crate::links::link_to;
use crate::sim::SimHeap;
use crate::sim::programs::stopped_recoveries;
use pm_alloc::format::{BlockHeader, BlockState};
use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, TxError};
use pm_core::{Link, Pmem};
use pm_testkit::{AnyPmem, Rng, SampledPmem, State, any};
use std::sync::{Arc, mpsc};
use std::thread::Scope;

pub(crate) const ENTRIES: u32 = 64;

pub(crate) fn options() -> HeapOptions {
    harness::options().lanes(2).lane_entries(ENTRIES).chunk_bytes(4096).in_place_from_bytes(256)
}

pub(crate) fn heap() -> SimHeap {
    let heap = Heap::format(any(Arc::new(SampledPmem::new(64 << 10))), &options()).unwrap();
    let made = heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(8)?;
        tx.set_root("slots", slots)?;
        Ok(slots.offset())
    });
    let slots = made.unwrap();
    assert_eq!(slots, heap.layout().first_payload(0));
    heap
}

/// A heap that was just opened, with an empty log. A block of 10 lines starts at line 23. The lines 3 to 22 are free, and an old header at line 11
/// is that of a former free block, which overlapped the lines of the block at 23.
pub(crate) fn heap_with_an_old_header() -> SimHeap {
    let heap = heap();
    // P starts at line 3, Z at line 11, and G at line 33. G ends with the chunk.
    assert_eq!([alloc(&heap, 0, 8), alloc(&heap, 1, 22), alloc(&heap, 2, 31)], [3, 11, 33]);
    free_now(&heap, 1);
    free_now(&heap, 0);
    // W covers P and the front of Z, so the header of Z stays inside W. Y covers the rest of Z.
    assert_eq!([alloc(&heap, 0, 20), alloc(&heap, 1, 10)], [3, 23]);
    heap.transact(|tx| tx.write_slice(link_to::<u64>(at_line(&heap, 23)), &[0x59; 20])).unwrap();
    free_now(&heap, 0);
    let sim = Arc::clone(heap.pool().pmem().sampled());
    heap.close().unwrap();
    let heap = Heap::attach(any(sim), &options()).unwrap();
    assert_clean(&heap);
    // All chunks are scanned, so that the shortest free extent is used.
    heap.scan_ahead(64).unwrap();
    drain_quarantine(&heap);
    heap
}

pub(crate) fn slot<P: Pmem>(heap: &Heap<P>, number: u64) -> u64 {
    heap.layout().first_payload(0) + 8 * number
}

/// Allocates an uninitialized block of this many lines, and links a slot to it. Returns the block's line in the first chunk.
pub(crate) fn alloc<P: Pmem>(heap: &Heap<P>, number: u64, lines: u64) -> u64 {
    let slot = slot(heap, number);
    let at = heap
        .view(|view| view.alloc_uninit_and_link(link_to::<Link<u64>>(slot), 8 * lines - 1).unwrap().offset());
    line_of(heap, at)
}

pub(crate) fn line_of<P: Pmem>(heap: &Heap<P>, at: u64) -> u64 {
    (at - heap.layout().chunk_offset(0)) / 64
}

pub(crate) fn at_line<P: Pmem>(heap: &Heap<P>, line: u64) -> u64 {
    heap.layout().chunk_offset(0) + 64 * line
}

pub(crate) fn free<P: Pmem>(heap: &Heap<P>, number: u64) {
    let slot = slot(heap, number);
    heap.view(|view| view.unlink_and_free(link_to::<Link<u64>>(slot)).unwrap());
}

/// Frees a block, and drains the quarantine, so that the block is reusable.
pub(crate) fn free_now<P: Pmem>(heap: &Heap<P>, number: u64) {
    free(heap, number);
    drain_quarantine(heap);
}

/// Raises the checkpoint LSN. Then allocations drain the quarantine incrementally.
pub(crate) fn drain_quarantine<P: Pmem>(heap: &Heap<P>) {
    heap.checkpoint().unwrap();
    for _ in 0..8 {
        let rolled_back = heap.transaction(|tx| {
            tx.alloc_uninit::<u64>(1)?;
            Err::<(), TxError>(TxError::Nested)
        });
        assert!(matches!(rolled_back, Err(TxError::Nested)));
    }
}

pub(crate) fn write_word<P: Pmem>(heap: &Heap<P>, at: u64, word: u64) {
    heap.transact(|tx| tx.write(link_to::<u64>(at), &word)).unwrap();
}

/// The lines of the allocated blocks.
pub(crate) fn listed<P: Pmem>(heap: &Heap<P>) -> Vec<u64> {
    heap.blocks().iter().map(|&at| line_of(heap, at)).collect()
}

/// Allocates all free space in blocks of `wanted` words or else of one word, and rolls back. Returns the payload and the words of each block.
pub(crate) fn allocate_all<P: Pmem>(heap: &Heap<P>, mut wanted: impl FnMut() -> u64) -> Vec<(u64, u64)> {
    let mut allocated = Vec::new();
    let rolled_back: Result<(), TxError> = heap.transaction(|tx| {
        loop {
            let words = wanted();
            match tx.alloc_uninit::<u64>(words) {
                Ok(block) => allocated.push((block.offset(), words)),
                Err(_) => allocated.push((tx.alloc_uninit::<u64>(1)?.offset(), 1)),
            }
        }
    });
    assert!(matches!(rolled_back, Err(TxError::Space(_))), "{rolled_back:?}");
    allocated
}

/// Allocates all free space in blocks of one line, and rolls back. Returns the payloads.
pub(crate) fn free_payloads<P: Pmem>(heap: &Heap<P>) -> Vec<u64> {
    allocate_all(heap, || 1).into_iter().map(|(payload, _)| payload).collect()
}

/// The lines of [`free_payloads`].
pub(crate) fn free_lines<P: Pmem>(heap: &Heap<P>) -> Vec<u64> {
    free_payloads(heap).into_iter().map(|at| line_of(heap, at)).collect()
}

/// The number of lines of a block, according to its header.
pub(crate) fn line_count_of<P: Pmem>(heap: &Heap<P>, payload: u64) -> u64 {
    let at = payload - 8;
    BlockHeader::from_word(heap.pool().pmem().load_u64(at), heap.layout().seed, at).unwrap().lines.into()
}

/// The payloads of the allocated blocks, and how many lines each has.
pub(crate) fn live_blocks<P: Pmem>(heap: &Heap<P>) -> Vec<(u64, u64)> {
    let mut live = vec![];
    heap.check_with(|block| {
        if block.state == BlockState::Allocated {
            live.push((block.payload, u64::from(block.lines)));
        }
    });
    live
}

/// The offsets of the log entries that differ between two states.
pub(crate) fn entry_lines(heap: &SimHeap, before: &State, after: &State) -> Vec<usize> {
    let layout = heap.layout();
    let lanes = 0..layout.lane_count;
    let entries =
        lanes.flat_map(|lane| (0..layout.lane_entries).map(move |entry| layout.entry_offset(lane, entry)));
    let lines = entries.map(|entry| entry as usize);
    lines.filter(|&at| before.durable[at..at + 64] != after.durable[at..at + 64]).collect()
}

pub(crate) fn sim_of(bytes: Vec<u8>) -> Arc<SampledPmem> {
    let mut state = State::default();
    (state.visible, state.durable) = (bytes.clone(), bytes);
    Arc::new(SampledPmem::of(state))
}

/// Opens a heap. `None` if the open is refused because of a corrupted line.
pub(crate) fn opened(sim: Arc<SampledPmem>, options: &HeapOptions) -> Option<SimHeap> {
    match Heap::attach(any(sim), options) {
        Err(HeapError::Recover(RecoverError::Corrupted { .. })) => None,
        opened => Some(opened.unwrap()),
    }
}

/// Corrupts these lines of the heap in `bytes`. Asserts that open refuses it, and then opens it with corrupted entries discarded.
pub(crate) fn discard(mut bytes: Vec<u8>, lines: &[usize], options: &HeapOptions) -> SimHeap {
    lines.iter().for_each(|line| bytes[line + 20] ^= 4);
    assert!(opened(sim_of(bytes.clone()), options).is_none());
    Heap::attach(any(sim_of(bytes)), &options.clone().discard_corrupted_records(true)).unwrap()
}

/// Asserts that a slot links to the block at `line`, that the block is listed, and that no call allocates any of these `lines` lines again.
pub(crate) fn assert_in_use(heap: &SimHeap, number: u64, line: u64, lines: u64) {
    assert_eq!(heap.pool().pmem().load_u64(slot(heap, number)), at_line(heap, line), "the slot links to it");
    let listed = listed(heap);
    let over: Vec<u64> =
        free_lines(heap).into_iter().filter(|over| (line..line + lines).contains(over)).collect();
    assert!(over.is_empty(), "{over:?} are allocated over {lines} lines in use from {line} on; {listed:?}");
    assert!(listed.contains(&line), "{line} is not among {listed:?}");
}

type Job<'s, P> = Box<dyn FnOnce(&Heap<P>) + Send + 's>;

/// A thread that runs jobs one after the other.
pub(crate) struct Worker<'s, P: Pmem = AnyPmem<'static>>(mpsc::Sender<Job<'s, P>>);

impl<'s, P: Pmem + 's> Worker<'s, P>
where
    Heap<P>: Sync,
{
    pub(crate) fn new(scope: &'s Scope<'s, '_>, heap: &'s Heap<P>) -> Self {
        let (jobs, given) = mpsc::channel::<Job<'s, P>>();
        scope.spawn(move || given.into_iter().for_each(|job| job(heap)));
        Self(jobs)
    }

    /// Begins a job. The channel receives its result.
    pub(crate) fn begin<R: Send + 's>(
        &self,
        job: impl FnOnce(&Heap<P>) -> R + Send + 's,
    ) -> mpsc::Receiver<R> {
        let (finish, finished) = mpsc::channel();
        self.0.send(Box::new(move |heap| finish.send(job(heap)).unwrap())).unwrap();
        finished
    }

    pub(crate) fn run<R: Send + 's>(&self, job: impl FnOnce(&Heap<P>) -> R + Send + 's) -> R {
        self.begin(job).recv().unwrap()
    }
}

/// Runs `inside` in a transaction that has overwritten the block `long` of 40 words in place, and so holds a lane.
pub(crate) fn holding_a_lane<P: Pmem, R>(heap: &Heap<P>, long: u64, inside: impl FnOnce() -> R) -> R {
    heap.transact(|tx| {
        tx.write(link_to(long), &[1_u64; 40])?;
        Ok(inside())
    })
    .unwrap()
}

/// Runs `first` in lane 0, then `second` in another thread and lane 1, and leaves the heap open. `long` is a block of at least 320 bytes. Returns
/// the lines of the log that `first` changed, and the result of `second`.
pub(crate) fn in_two_lanes<R: Send + 'static>(
    heap: &SimHeap,
    long: u64,
    first: impl FnOnce(),
    second: impl FnOnce(&SimHeap) -> R + Send + 'static,
) -> (Vec<usize>, R) {
    std::thread::scope(|scope| {
        let other = Worker::new(scope, heap);
        let words =
            |heap: &SimHeap| [1, 2].into_iter().for_each(|value| write_word(heap, slot(heap, 7), value));
        holding_a_lane(heap, long, || other.run(words));
        heap.checkpoint().unwrap();
        (entries_of(heap, first), other.run(second))
    })
}

/// Runs a function. Returns the offsets of the log entries that it changed.
pub(crate) fn entries_of(heap: &SimHeap, run: impl FnOnce()) -> Vec<usize> {
    let before = heap.pool().pmem().sampled().power_failure();
    run();
    entry_lines(heap, &before, &heap.pool().pmem().sampled().power_failure())
}

/// Runs a function with a worker that commits in the other lane.
pub(crate) fn with_worker<R>(heap: &SimHeap, run: impl FnOnce(&Worker<'_>) -> R) -> R {
    std::thread::scope(|scope| {
        let other = Worker::new(scope, heap);
        let block = heap.transact(|tx| Ok(tx.alloc_zeroed::<u64>(40)?.offset())).unwrap();
        heap.transact(|tx| {
            tx.write(link_to(block), &[1_u64; 40])?;
            other.run(|heap| write_word(heap, slot(heap, 7), 0));
            tx.free(link_to::<u64>(block))
        })
        .unwrap();
        heap.checkpoint().unwrap();
        drain_quarantine(heap);
        run(&other)
    })
}

/// Opens a heap after stopped recoveries. All of them discard corrupted entries. Half of the time the power then fails, and the heap is opened again.
pub(crate) fn opened_after_stops(left: State, options: &HeapOptions, rng: &mut Rng) -> SimHeap {
    let discarding = options.clone().discard_corrupted_records(true);
    let left = stopped_recoveries(left, &discarding, rng);
    let heap = Heap::attach(any(Arc::new(SampledPmem::of(left))), &discarding).unwrap();
    if rng.one_in(2) {
        return heap;
    }
    let bytes = heap.pool().pmem().sampled().power_failure().durable;
    core::mem::forget(heap);
    Heap::attach(any(sim_of(bytes)), options).unwrap()
}
