//! Crashes while a heap is created, grows and is closed, and while blocks are allocated over the headers of free blocks and of chunks.

use super::prelude::*;
use pm_alloc::{SpaceError, UnloggedHeap};
use pm_testkit::Growing;

const REGION_BYTES: u64 = 1 << 16;

fn options() -> HeapOptions {
    crate::harness::options().lanes(1).lane_entries(16).chunk_bytes(4096)
}

fn attach(pmem: &Arc<SimPmem>) -> Result<SimHeap, HeapError> {
    Heap::attach(any(Arc::clone(pmem)), &options())
}

/// The image of a closed heap that `make` has used. If it `is_reopened`, it was opened and closed once more, so that the log has no live entry.
fn image(is_reopened: bool, make: impl FnOnce(&SimHeap)) -> Image {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
    make(&heap);
    drop(heap);
    if is_reopened {
        drop(attach(&sim).unwrap());
    }
    sim.to_image()
}

fn empty() -> Image {
    image(false, |_| ())
}

/// The image of a heap whose region has room for this number of additional chunks.
fn enlarged(image: &Image, chunks: u64) -> Image {
    let mut bytes = image.to_bytes();
    bytes.resize(usize::try_from(REGION_BYTES + chunks * 4096).unwrap(), 0);
    Image::from_bytes(bytes)
}

/// Kills the operation at every point. Crashes the operation and the process after the kill at every point.
fn killer() -> Explorer {
    Explorer::new(Model::Px86Line).kills(1).crashes(1)
}

/// Explores all crashes and kills under each model, including crashes of recovery.
fn explore(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    for model in [Model::Eadr, Model::Px86Line, Model::Page] {
        let explorer =
            Explorer::new(model).choices_per_point(1 << 16).nested_choices_per_point(1 << 12).kills(1);
        let coverage = explorer.lints(lints()).check(image, &operation, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

#[test]
fn creation_is_atomic() {
    let operation = |run: &Run<()>| {
        Heap::format(any(Arc::clone(run.pmem())), &options()).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| match attach(crash.pmem()) {
        Ok(heap) => {
            let opened = heap.open_report();
            let nothing_restored = !opened.is_header_restored && !opened.is_chunk_count_restored;
            assert!(nothing_restored && opened.recovery.corrupted_words == 0, "{opened:?}");
            assert_clean(&heap);
            // Each crashed process may have allocated one block.
            assert!(heap.blocks().len() <= crash.crashes());
            heap.transaction(|tx| tx.alloc(&1_u64).map(drop)).map_err(|error: TxError| error.to_string())
        }
        Err(HeapError::Pool(_)) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    explore(&Image::zeroed(REGION_BYTES), operation, check);
}

#[test]
fn growth_is_atomic() {
    let small = image(false, |heap| heap.transact(|tx| tx.alloc(&[7_u64; 8]).map(drop)).unwrap());
    let image = enlarged(&small, 3);
    let chunks = |heap: &SimHeap| heap.check().chunks.len();
    let before = {
        let sim = Arc::new(SimPmem::from_image(&image, Model::Px86Line));
        chunks(&attach(&sim).unwrap())
    };
    let operation = |run: &Run<()>| {
        let mut pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        pool.extend().unwrap();
        drop(pool);
        // Open makes chunks of the new room of the pool. They are durable before the heap is closed.
        let heap = attach(run.pmem()).unwrap();
        assert_eq!(chunks(&heap), before + 3);
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        if !crash.acked().is_empty() {
            let pool = Pool::attach_read_only(crash.pmem()).map_err(|error| error.to_string())?;
            let found = HeapInspection::of(&pool).map_err(|error| error.to_string())?.chunk_count;
            assert_eq!(found, before as u64 + 3, "the chunk count is durable");
        }
        let heap = recovered_heap(crash, &options())?;
        assert!(!heap.open_report().is_chunk_count_restored);
        assert_clean(&heap);
        assert_eq!(heap.blocks().len(), 1);
        let is_as_before = crash.acked().is_empty() && chunks(&heap) == before;
        if is_as_before || chunks(&heap) == before + 3 { Ok(()) } else { Err(chunks(&heap).to_string()) }
    };
    explore(&image, operation, check);
}

/// A crash while a transaction grows the heap, and while the next one uses what is new. The file may be longer than the pool's header says.
#[test]
fn growth_in_use_is_atomic() {
    let (image, _) = full();
    let (image, new_bytes) = (enlarged(&image, 4), REGION_BYTES + 3 * 4096);
    let attach = |pmem: &Arc<SimPmem>, len_bytes: u64| {
        let file = AnyPmem::other(Growing::new(Arc::clone(pmem), len_bytes));
        Heap::attach(file, &options().max_bytes(new_bytes))
    };
    let add = |heap: &SimHeap, name: &str| {
        heap.transact(|tx| {
            let added = tx.alloc(&[9_u64; 7])?;
            tx.set_root(name, added)
        })
    };
    let before =
        attach(&Arc::new(SimPmem::from_image(&image, Model::Px86Line)), REGION_BYTES).unwrap().blocks().len();
    let operation = |run: &Run<()>| {
        let heap = attach(run.pmem(), REGION_BYTES).unwrap();
        for name in ["first", "second"] {
            add(&heap, name).unwrap();
            run.ack(());
        }
        assert_eq!(heap.pool().pmem().len_bytes(), new_bytes);
        assert!(heap.growth_error().is_none());
    };
    let check = |crash: &Crash<()>| {
        let heap = attach(crash.pmem(), REGION_BYTES).map_err(|error| error.to_string())?;
        assert_clean(&heap);
        // A recovery that crashed may have added one, too.
        let roots = ["first", "second", "later"].map(|name| {
            heap.view(|view| {
                let root = view.root::<[u64; 7]>(name).unwrap();
                root.map(|root| assert_eq!(view.read(root).unwrap(), [9; 7])).is_some()
            })
        });
        assert!(roots[0] || !roots[1], "in order");
        assert_eq!(heap.blocks().len(), before + roots.into_iter().filter(|found| *found).count());
        let count = roots[..2].iter().filter(|found| **found).count();
        if count < crash.acked().len() {
            return Err(format!("{count} of {} blocks", crash.acked().len()));
        }
        // It goes on, and may grow now.
        if !roots[2] {
            add(&heap, "later").map_err(|error| error.to_string())?;
        }
        assert_clean(&heap);
        Ok(())
    };
    for model in [Model::Eadr, Model::Px86Line, Model::Page] {
        let explorer = Explorer::new(model).choices_per_point(32).nested_choices_per_point(2).kills(1);
        explorer.lints(lints()).check(&image, operation, check);
    }
}

/// The heap grows to the greatest length and not beyond it, and where there is no space it is full and keeps what it has.
#[test]
fn heap_grows_to_the_greatest_length() {
    const LENGTHS: [(u64, u64, bool); 5] = [
        // The greatest length, that of the medium, and whether the heap is full because the medium is.
        (REGION_BYTES + 16 * 4096, REGION_BYTES + 32 * 4096, false),
        (REGION_BYTES + 16 * 4096, REGION_BYTES + 16 * 4096, false),
        (REGION_BYTES + 16 * 4096, REGION_BYTES + 5 * 4096, true),
        (REGION_BYTES + 4096, REGION_BYTES, true),
        (REGION_BYTES, REGION_BYTES + 4096, false),
    ];
    for (max_bytes, medium_bytes, is_short_of_space) in LENGTHS {
        let medium = Arc::new(SimPmem::new(Growing::<SimPmem>::medium_bytes(medium_bytes)));
        let file = AnyPmem::other(Growing::new(medium, REGION_BYTES));
        let heap = Heap::format(file, &options().max_bytes(max_bytes)).unwrap();
        let mut count = 0;
        let error = loop {
            match heap.transact(|tx| tx.alloc(&[1_u64; 60]).map(drop)) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, TxError::Space(SpaceError::Full { .. })), "{error}");
        let expected = max_bytes.min(medium_bytes);
        let found = heap.pool().pmem().len_bytes();
        assert_eq!(found, expected, "at most {max_bytes}, on a medium of {medium_bytes}");
        assert_eq!(heap.growth_error().is_some(), is_short_of_space);
        assert_eq!(heap.max_bytes(), max_bytes);
        // Blocks longer than the heap can ever be, and those that are too long for a header.
        for bytes in [max_bytes, u64::MAX / 2] {
            heap.transact(|tx| tx.alloc_uninit::<u8>(bytes).map(drop)).unwrap_err();
        }
        assert_eq!(heap.pool().pmem().len_bytes(), expected);
        assert_clean(&heap);
        assert_eq!(heap.blocks().len(), count);
    }
}

/// A block that is longer than the heap grows it as far as it needs, and a heap of a fixed length never grows.
#[test]
fn long_blocks_grow_the_heap() {
    let max_bytes = 16 * REGION_BYTES;
    let file = || {
        AnyPmem::other(Growing::new(
            Arc::new(SimPmem::new(Growing::<SimPmem>::medium_bytes(max_bytes))),
            REGION_BYTES,
        ))
    };
    let heap = Heap::format(file(), &options().max_bytes(max_bytes)).unwrap();
    let block = heap.transact(|tx| tx.alloc_slice(&vec![3_u8; 5 * REGION_BYTES as usize]).map(Link::offset));
    let block = block.unwrap();
    assert!(heap.pool().pmem().len_bytes() > 5 * REGION_BYTES);
    assert_eq!(heap.blocks(), [block]);
    assert_clean(&heap);
    let heap = Heap::format(file(), &options().chunk_count(4).max_bytes(max_bytes)).unwrap();
    while heap.transact(|tx| tx.alloc(&[1_u64; 60]).map(drop)).is_ok() {}
    assert_eq!(heap.pool().pmem().len_bytes(), REGION_BYTES);
}

/// The image of a full heap, and two adjacent blocks of it.
fn full() -> (Image, [u64; 2]) {
    let mut blocks = vec![];
    let image = image(true, |heap| {
        while heap.transact(|tx| tx.alloc(&[1_u64; 7]).map(drop)).is_ok() {}
        blocks = heap.blocks();
    });
    (image, [blocks[2], blocks[3]])
}

#[test]
fn free_blocks_are_joined_before_they_are_overwritten() {
    let (image, [first, second]) = full();
    let operation = |run: &Run<()>| {
        let heap = attach(run.pmem()).unwrap();
        for block in [first, second] {
            heap.transact(|tx| tx.free(link_to::<u64>(block))).unwrap();
        }
        // The contents stored before the commit overwrite the second header.
        let block = heap.transact(|tx| tx.alloc_slice(&[0xAAAA_u64; 15]).map(Link::offset));
        assert_eq!(block.unwrap(), first);
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let heap = recovered_heap(crash, &options())?;
        assert_clean(&heap);
        let is_whole = || (0..15).all(|word| crash.pmem().load_u64(first + 8 * word) == 0xAAAA);
        let blocks = heap.blocks();
        let is_there = blocks.contains(&first) && !blocks.contains(&second) && is_whole();
        if is_there || crash.acked().is_empty() { Ok(()) } else { Err("the block is lost".to_owned()) }
    };
    explore(&image, operation, check);
}

/// Kills the first process at every point, and crashes the second one at every point.
fn explore_restarted(
    image: &Image,
    first: impl Fn(&SimHeap) + Sync,
    second: impl Fn(&SimHeap) -> u64 + Sync,
    check: impl Fn(&SimHeap, &[u64]) -> Result<(), String> + Sync,
) {
    let first = |run: &Run<u64>| first(&attach(run.pmem()).unwrap());
    let second = |run: &Run<u64>| run.ack(second(&attach(run.pmem()).unwrap()));
    let check = |crash: &Crash<u64>| check(&recovered_heap(crash, &options())?, crash.acked());
    killer().check_restarted(image, first, second, check);
}

/// Allocates a block of `words` words. Later commits then overwrite its log entries.
fn old_block(heap: &SimHeap, words: usize) -> u64 {
    let block = heap.transact(|tx| tx.alloc_slice(&vec![9_u64; words]).map(Link::offset)).unwrap();
    for value in 0..3_u64 {
        heap.transact(|tx| tx.write(link_to(block), &value)).unwrap();
    }
    block
}

fn check_live(heap: &SimHeap, acked: &[u64]) -> Result<(), String> {
    let (report, blocks) = (heap.check(), heap.blocks());
    match (report.is_clean(), acked.iter().all(|block| blocks.contains(block))) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("{:x?}", report.corruptions)),
        (true, false) => Err("a committed block is free".to_owned()),
    }
}

/// The next process finds a number of chunks that is visible, but not durable.
#[test]
fn blocks_in_chunks_of_killed_growth_survive() {
    let small = image(true, |heap| {
        while heap.transact(|tx| tx.alloc(&[7_u64; 60]).map(drop)).is_ok() {}
        while heap.transact(|tx| tx.alloc(&[7_u64; 7]).map(drop)).is_ok() {}
    });
    let large = SimPmem::from_image(&enlarged(&small, 2), Model::Px86Line);
    Pool::attach(&large).unwrap().extend().unwrap();
    explore_restarted(&large.to_image(), |_| (), |heap| old_block(heap, 60), check_live);
}

/// The next process finds a header of joined blocks that is visible, but not durable.
#[test]
fn free_blocks_joined_by_killed_process_stay_joined() {
    let (image, [first, second]) = full();
    let image = {
        let sim = Arc::new(SimPmem::from_image(&image, Model::Px86Line));
        let heap = attach(&sim).unwrap();
        for block in [first, second] {
            heap.transact(|tx| tx.free(link_to::<u64>(block))).unwrap();
        }
        drop(heap);
        drop(attach(&sim).unwrap());
        sim.to_image()
    };
    let joined = |heap: &SimHeap| {
        let block = heap.transact(|tx| tx.alloc_slice(&[0xAAAA_u64; 15]).map(Link::offset));
        block.ok()
    };
    let second = |heap: &SimHeap| joined(heap).unwrap_or(first);
    explore_restarted(&image, |heap| assert_ne!(joined(heap), None), second, |heap, _| check_live(heap, &[]));
}

/// A freed huge block is split into chunks. The next process finds first headers of chunks that are visible, but not durable.
#[test]
fn blocks_in_chunks_split_by_killed_process_survive() {
    let image = image(true, |heap| {
        let bytes = (heap.check().chunks.len() as u64 - 1) * 4096;
        let long = heap.transact(|tx| tx.alloc_uninit::<u8>(bytes).map(Link::offset)).unwrap();
        heap.transact(|tx| tx.free(link_to::<u8>(long))).unwrap();
    });
    let two = |heap: &SimHeap| (0..2).map(|_| old_block(heap, 500)).last().unwrap();
    explore_restarted(&image, |heap| assert!(two(heap) > 0), two, check_live);
}

/// A crash may leave the new number of chunks, but the old copy of it. Open makes the two equal, so that either may be corrupted later.
#[test]
fn copies_of_chunk_count_are_equal_after_open() {
    let image = enlarged(&empty(), 3);
    let operation = |run: &Run<()>| {
        Pool::attach(Arc::clone(run.pmem())).unwrap().extend().unwrap();
        drop(attach(run.pmem()).unwrap());
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let heap = recovered_heap(crash, &options())?;
        crash.recovered();
        let (expected, words) = (heap.check().chunks.len() as u64, heap.layout().chunk_count_offsets());
        drop(heap);
        for word in words {
            let pmem = crash.pmem();
            let right = pmem.load_u64(word);
            pmem.store_u64(word, !right);
            let pool = Pool::attach_read_only(pmem).map_err(|error| error.to_string())?;
            let found = HeapInspection::of(&pool).map_err(|error| error.to_string())?.chunk_count;
            if found != expected {
                return Err(format!("{found} chunks of {expected}"));
            }
            pmem.store_u64(word, right);
        }
        Ok(())
    };
    for model in [Model::Eadr, Model::Px86Line] {
        Explorer::new(model).crashes(1).kills(1).check(&image, operation, check);
    }
}

/// Corrupts the header of a huge block, and opens the heap. Returns an error if space inside the block is allocated.
fn check_not_reallocated(pmem: &Arc<SimPmem>, block: u64, bytes: u64) -> Result<(), String> {
    pmem.store_u64(block - 8, !pmem.load_u64(block - 8));
    let heap = attach(pmem).map_err(|error| error.to_string())?;
    let alloc = || heap.transaction(|tx| tx.alloc_uninit::<u8>(4096 - 72).map(Link::offset));
    while let Ok(allocated) = alloc().map_err(|error: TxError| error) {
        if (block..block + bytes).contains(&allocated) {
            return Err(format!("{allocated:#x} is allocated again, inside the block at {block:#x}"));
        }
    }
    Ok(())
}

/// The first headers of the chunks that a huge block covers are zeroed before the block is allocated.
#[test]
fn chunks_covered_by_committed_huge_block_have_no_first_header() {
    const BYTES: u64 = 3 * 4096 - 500;
    let operation = |run: &Run<()>| {
        let heap = attach(run.pmem()).unwrap();
        let block = heap.transaction(|tx| {
            let block = tx.alloc_uninit::<u8>(BYTES)?;
            tx.set_root("long", block)
        });
        block.map_err(|error: TxError| error).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let heap = recovered_heap(crash, &options())?;
        let block = heap.view(|view| view.root::<u8>("long").unwrap().map(Link::offset));
        drop(heap);
        block.map_or(Ok(()), |block| check_not_reallocated(crash.pmem(), block, BYTES))
    };
    killer().choices_per_point(1 << 12).check(&empty(), operation, check);
}

/// The only block of a heap, and its capacity. They are looked up in a copy of the region, because open may repair the heap.
fn only_block(pmem: &SimPmem) -> Option<(u64, u64)> {
    let heap = attach(&Arc::new(SimPmem::from_image(&pmem.to_image(), Model::Px86Line))).unwrap();
    let block = heap.blocks().pop()?;
    let mut bytes = 0;
    heap.check_with(|found| {
        if found.payload == block {
            bytes = u64::from(found.lines) * 64 - 8;
        }
    });
    Some((block, bytes))
}

/// When the allocating call of a durable unlogged heap returns, the block is durably allocated, and the chain of its chunk includes it.
#[test]
fn durable_unlogged_block_survives_once_call_returns() {
    let operation = |run: &Run<()>| {
        let unlogged = UnloggedHeap::new(attach(run.pmem()).unwrap()).durable(true);
        for bytes in [100, 500] {
            unlogged.alloc(bytes, 64).unwrap();
            run.ack(());
        }
    };
    let check = |crash: &Crash<()>| -> Result<(), String> {
        let heap = recovered_heap(crash, &options())?;
        assert_clean(&heap);
        assert!(heap.blocks().len() >= crash.acked().len(), "{} blocks", heap.blocks().len());
        Ok(())
    };
    killer().check(&empty(), operation, check);
}

/// When an unlogged heap has closed its log, all of its blocks are durable, although the heap is not durable and no call made them so.
#[test]
fn closing_makes_unlogged_blocks_durable() {
    let floor = |pmem: &Arc<SimPmem>| {
        let pool = Pool::attach_read_only(Arc::clone(pmem)).unwrap();
        HeapInspection::of(&pool).unwrap().log.floor
    };
    let closed = {
        let sim = Arc::new(SimPmem::from_image(&empty(), Model::Px86Line));
        drop(attach(&sim).unwrap());
        floor(&sim)
    };
    let operation = |run: &Run<()>| {
        let unlogged = UnloggedHeap::new(attach(run.pmem()).unwrap());
        // A short block, and one longer than a chunk.
        for bytes in [100, 2 * 4096 - 500] {
            unlogged.alloc(bytes, 64).unwrap();
        }
    };
    let check = |crash: &Crash<()>| {
        if floor(crash.pmem()) < closed {
            return Ok(());
        }
        let heap = recovered_heap(crash, &options())?;
        let (report, blocks) = (heap.check(), heap.blocks());
        let is_whole = report.is_clean() && blocks.len() == 2;
        if is_whole { Ok(()) } else { Err(format!("{blocks:?}, {:?}", report.corruptions)) }
    };
    // Recoveries are not crashed, because they raise the floor, which `check` compares.
    Explorer::new(Model::Px86Line).crashes(1).check(&empty(), operation, check);
}

/// The first headers of the chunks that a huge block of an unlogged heap covers are zeroed, too.
#[test]
fn chunks_covered_by_unlogged_huge_block_have_no_first_header() {
    let operation = |run: &Run<()>| {
        // A block up to the end of a chunk, with no free block after it.
        UnloggedHeap::new(attach(run.pmem()).unwrap()).durable(true).alloc(3 * 4096 - 72, 64).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let found = only_block(crash.pmem());
        found.map_or(Ok(()), |(block, bytes)| check_not_reallocated(crash.pmem(), block, bytes))
    };
    killer().check(&empty(), operation, check);
}

/// A process is killed while it grows a block over further chunks. The next open zeroes the first headers of those chunks.
#[test]
fn chunks_covered_by_grown_block_have_no_first_header() {
    let first = |run: &Run<()>| {
        let unlogged = UnloggedHeap::new(attach(run.pmem()).unwrap()).durable(true);
        let (block, long) = (unlogged.alloc(2 * 4096 - 500, 64).unwrap(), 5 * 4096 - 500);
        assert!(unlogged.resize(block, long..=long, |_, _| true).unwrap().is_some());
    };
    let second = |run: &Run<()>| {
        drop(attach(run.pmem()).unwrap());
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let found = only_block(crash.pmem());
        let found = found.filter(|_| !crash.acked().is_empty());
        found.map_or(Ok(()), |(block, bytes)| check_not_reallocated(crash.pmem(), block, bytes))
    };
    killer().check_restarted(&empty(), first, second, check);
}

/// A process shrinks a block, and makes nothing durable. When the next process has scanned the chunks, the end headers of the released chunks are
/// durable.
#[test]
fn chunks_released_by_shrinking_keep_their_end_headers() {
    let first = |run: &Run<()>| {
        let unlogged = UnloggedHeap::new(attach(run.pmem()).unwrap());
        let (block, short) = (unlogged.alloc(4 * 4096 - 500, 64).unwrap(), 4096 + 500);
        // The contents overwrite the former end headers of the chunks.
        run.pmem().store(block, &[0xA5; 4 * 4096 - 500]);
        assert!(unlogged.resize(block, short..=short, |_, _| true).unwrap().is_some());
    };
    let second = |run: &Run<()>| {
        attach(run.pmem()).unwrap().scan_ahead(usize::MAX).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let corruptions = recovered_heap(crash, &options())?.check().corruptions;
        let is_whole = corruptions.is_empty() || crash.acked().is_empty();
        if is_whole { Ok(()) } else { Err(format!("{corruptions:?}")) }
    };
    Explorer::new(Model::Px86Line).crashes(1).check_restarted(&empty(), first, second, check);
}

#[test]
fn nothing_is_replayed_after_checkpoint() {
    let operation = |run: &Run<()>| {
        let heap = attach(run.pmem()).unwrap();
        heap.transact(|tx| tx.alloc(&1_u64).map(drop)).unwrap();
        heap.checkpoint().unwrap();
        run.ack(());
        // The heap is not closed, because after a close there is nothing to replay, either.
        core::mem::forget(heap);
    };
    let check = |crash: &Crash<()>| {
        let heap = recovered_heap(crash, &options())?;
        let replayed = heap.open_report().recovery.replayed;
        let is_done = !crash.acked().is_empty();
        if is_done && replayed > 0 { Err(format!("{replayed} replayed")) } else { Ok(()) }
    };
    explore(&empty(), operation, check);
}
