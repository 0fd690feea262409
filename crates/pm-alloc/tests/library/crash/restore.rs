//! The heap's header and its number of chunks have two copies each. Open restores a corrupted copy. The copy is durable when open returns, and a
//! crash during open leaves the other copy intact. Also, the repair of a block header is atomic.

use super::prelude::*;
use pm_alloc::FreeError;
use pm_core::PoolOptions;

const REGION_BYTES: u64 = 1 << 16;

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(16).chunk_bytes(4096)
}

/// A heap with three blocks, and their offsets.
fn prepared() -> (Image, Vec<u64>) {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
    heap.transact(|tx| (1..=3_u64).try_for_each(|value| tx.alloc(&value).map(drop))).unwrap();
    drop(heap);
    // The heap is opened once more, so that no log entry is replayed over the corruption that the tests cause.
    let heap = Heap::attach(any(Arc::clone(&sim)), &options()).unwrap();
    (sim.to_image(), heap.blocks())
}

fn corrupted(image: &Image, offset: u64) -> Image {
    let mut bytes = image.to_bytes();
    bytes[usize::try_from(offset).unwrap()] ^= 0x10;
    Image::from_bytes(bytes)
}

/// The offsets of the header and of the number of chunks, each with that of its copy.
fn copies(image: &Image) -> [(u64, u64); 2] {
    let pool = Pool::attach_read_only(SimPmem::from_image(image, Model::Px86Line)).unwrap();
    let inspection = HeapInspection::of(&pool).unwrap();
    assert_eq!((inspection.header_corrupted, inspection.chunk_count_corrupted), ([false; 2], 0));
    let layout = inspection.layout;
    [(layout.heap_start + 48, layout.heap_start + 8192 + 48), layout.chunk_count_offsets().into()]
}

/// Explores every choice of a crash, the crashes of each recovery, and every kill.
fn explore(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    for model in [Model::Eadr, Model::Px86Line] {
        let explorer = Explorer::new(model).nested_choices_per_point(64).kills(1);
        let coverage = explorer.check(image, &operation, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

#[test]
fn either_corrupted_copy_is_restored() {
    let (image, blocks) = prepared();
    for (first, second) in copies(&image) {
        for (offset, other) in [(first, second), (second, first)] {
            let image = corrupted(&image, offset);
            let pool = Pool::attach_read_only(SimPmem::from_image(&image, Model::Px86Line)).unwrap();
            let seen = HeapInspection::of(&pool).unwrap();
            assert!(seen.header_corrupted.contains(&true) || seen.chunk_count_corrupted == 1, "{seen:?}");

            let operation = |run: &Run<()>| {
                let heap = Heap::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
                assert!(heap.open_report().is_header_restored || heap.open_report().is_chunk_count_restored);
                run.ack(());
            };
            let check = |crash: &Crash<()>| -> Result<(), String> {
                if !crash.acked().is_empty() {
                    // The restored copy is durable, so the heap opens although the other copy is corrupted.
                    let word = other & !7;
                    let pmem = crash.pmem();
                    pmem.store_u64(word, !pmem.load_u64(word));
                }
                let heap = recovered_heap(crash, &options())?;
                assert_eq!(heap.blocks(), blocks);
                Ok(())
            };
            explore(&image, operation, check);
        }
    }
}

/// The copy that a killed process restored is visible to the next process, which finds nothing to restore. But it may not be durable yet.
#[test]
fn copy_restored_by_killed_process_is_durable_after_next_open() {
    let (image, blocks) = prepared();
    let (first, second) = copies(&image)[0];
    for (offset, other) in [(first, second), (second, first)] {
        let image = corrupted(&image, offset);
        let check = |crash: &Crash<()>| -> Result<(), String> {
            let pmem = crash.pmem();
            if !crash.acked().is_empty() {
                pmem.store_u64(other, !pmem.load_u64(other));
            }
            let heap = Heap::attach(any(Arc::clone(pmem)), &options()).map_err(|error| error.to_string())?;
            assert_eq!(heap.blocks(), blocks);
            Ok(())
        };
        Explorer::new(Model::Px86Line).kills(1).crashes(1).check_restarted(
            &image,
            opened,
            acknowledged,
            check,
        );
    }
}

/// As above, but the second copy is corrupted before the next open. The open must not store to that copy before the first copy is durable.
#[test]
fn restored_copy_is_durable_before_the_other_is_restored() {
    let (image, _) = prepared();
    let (first, second) = copies(&image)[0];
    let image = corrupted(&image, first);
    // Two words of one line, corrupted together.
    let pair = second - 16;
    let reopened = |run: &Run<()>| {
        run.pmem().store_u128(pair, u128::MAX);
        run.pmem().persist(pair, 16).unwrap(); // teeth: a crash may keep the corruption without it
        match acknowledged(run) {
            // The first process was killed before it restored the first copy.
            Err(HeapError::HeaderCorrupted { .. }) => Ok(()),
            other => other,
        }
    };
    let check = |crash: &Crash<()>| -> Result<(), String> {
        let pmem = crash.pmem();
        // Until a process has stored to the second copy, both copies may be corrupted.
        let is_begun = [pair, pair + 8].into_iter().any(|word| pmem.load_u64(word) != u64::MAX);
        match Heap::attach(any(Arc::clone(pmem)), &options()) {
            Err(error) if is_begun => Err(error.to_string()),
            _ => Ok(()),
        }
    };
    Explorer::new(Model::Px86Line).kills(1).crashes(1).check_restarted(&image, opened, reopened, check);
}

fn opened(run: &Run<()>) -> Result<(), HeapError> {
    Heap::attach(any(Arc::clone(run.pmem())), &options()).map(drop)
}

fn acknowledged(run: &Run<()>) -> Result<(), HeapError> {
    let heap = Heap::attach(any(Arc::clone(run.pmem())), &options())?;
    run.ack(());
    drop(heap);
    Ok(())
}

/// If the root of the heap is corrupted, open finds the heap by its header, and restores the root.
#[test]
fn lost_heap_root_is_restored() {
    let (image, blocks) = prepared();
    let bytes = image.to_bytes();
    let name = bytes.windows(13).position(|bytes| bytes == b"pm-alloc.heap").unwrap() as u64;
    let image = corrupted(&image, name);
    let operation = |run: &Run<()>| {
        let heap = Heap::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
        assert!(heap.open_report().is_root_restored);
        run.ack(());
    };
    let check = |crash: &Crash<()>| -> Result<(), String> {
        let heap = recovered_heap(crash, &options())?;
        assert_eq!(heap.blocks(), blocks);
        let is_set = !heap.open_report().is_root_restored;
        if is_set || crash.acked().is_empty() { Ok(()) } else { Err("the restored root is lost".to_owned()) }
    };
    explore(&image, operation, check);
    // The header is invalid if its data area belongs to another pool.
    let sim = Arc::new(SimPmem::from_image(&image, Model::Px86Line));
    Pool::format(&sim, &PoolOptions::new().overwrite()).unwrap();
    sim.store_u64(4096 + 64, 1);
    assert!(matches!(Heap::attach(any(&sim), &options()), Err(HeapError::Root(_))));
}

#[test]
fn repair_is_atomic() {
    let (image, blocks) = prepared();
    let image = corrupted(&image, blocks[1] - 8);
    let operation = |run: &Run<()>| {
        let mut heap = Heap::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
        let corruptions = heap.check().corruptions;
        let [corruption] = corruptions.as_slice() else { panic!("{corruptions:?}") };
        assert!(heap.repair(corruption).unwrap());
        assert!(!heap.repair(corruption).unwrap(), "a second repair finds no corruption");
        run.ack(());
    };
    let check = |crash: &Crash<()>| -> Result<(), String> {
        let heap = recovered_heap(crash, &options())?;
        let report = heap.check();
        let is_repaired = report.is_clean() && report.lost_blocks == 1;
        let is_as_before = report.corruptions.len() == 1 && crash.acked().is_empty();
        let has_others = heap.blocks() == [blocks[0], blocks[2]];
        if (is_repaired || is_as_before) && has_others { Ok(()) } else { Err(format!("{report:?}")) }
    };
    explore(&image, operation, check);
}

/// If a heap is opened with a corrupted header, the length of the block is not known, so the free space after it is not allocated again. If the heap
/// was open when the header was corrupted, the length is known, and only that block is lost.
#[test]
fn repair_frees_only_what_is_proven_free() {
    let (image, blocks) = prepared();
    let sim = Arc::new(SimPmem::from_image(&corrupted(&image, blocks[1] - 8), Model::Px86Line));
    let mut heap = Heap::attach(any(Arc::clone(&sim)), &options()).unwrap();
    // The allocation scans the chunk.
    heap.transaction(|tx| tx.alloc(&4_u64).map(drop)).unwrap();
    let fill = |heap: &Heap<AnyPmem<'static>>| {
        let mut count = 0;
        while heap.transact(|tx| tx.alloc(&5_u64).map(drop)).is_ok() {
            count += 1;
        }
        count
    };
    fill(&heap);
    for corruption in heap.check().corruptions {
        assert!(heap.repair(&corruption).unwrap());
    }
    assert_eq!(fill(&heap), 0, "the length of the block is not known");
    let report = heap.check();
    assert_eq!((report.is_clean(), report.free_blocks, report.lost_blocks), (true, 0, 1));
    assert_eq!(
        report.lost_bytes,
        (63 - 2) * 64,
        "all lines of the chunk's blocks except those of the first and the third block"
    );
    assert!(heap.blocks().contains(&blocks[2]), "its own header is intact");
    let header = sim.load_u64(blocks[2] - 8);
    let free = || heap.transaction(|tx| tx.free(link_to::<u64>(blocks[2])));
    free().map_err(|error: TxError| error).unwrap();
    assert!(matches!(free(), Err(TxError::Free(FreeError::AlreadyFree { .. }))));
    assert_eq!(sim.load_u64(blocks[2] - 8), header, "freeing stores no header after a corrupted one");

    let sim = Arc::new(SimPmem::from_image(&image, Model::Px86Line));
    let mut heap = Heap::attach(any(Arc::clone(&sim)), &options()).unwrap();
    assert_eq!(heap.scan_ahead(usize::MAX).unwrap(), 0);
    let header = blocks[1] - 8;
    sim.store_u64(header, !sim.load_u64(header));
    for corruption in heap.check().corruptions {
        assert!(heap.repair(&corruption).unwrap());
    }
    assert_eq!(heap.check().lost_bytes, 64);
    assert!(fill(&heap) > 32, "the rest of a chunk of 64 lines");
    drop(heap);
    let heap = Heap::attach(any(Arc::clone(&sim)), &options()).unwrap();
    let report = heap.check();
    assert_eq!((report.is_clean(), report.free_blocks, report.lost_bytes), (true, 0, 64));
}

/// A repair stores the end header of a chunk. Later a huge block covers that header, and recovery does not replay it.
#[test]
fn repaired_end_of_chunk_is_not_replayed() {
    let sim = Arc::new(SimPmem::new(1 << 17));
    let layout = *Heap::format(any(Arc::clone(&sim)), &options()).unwrap().layout();
    sim.store_u64(layout.chunk_offset(1) - 8, 0xdead);
    let contents: Vec<u64> = (1..=1000).collect();
    let operation = |run: &Run<()>| {
        let mut heap = Heap::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
        for corruption in heap.check().corruptions {
            assert!(heap.repair(&corruption).unwrap());
        }
        let block = heap.transaction(|tx| {
            let block = tx.alloc_slice(&contents)?;
            tx.set_root("long", block)
        });
        block.map_err(|error: TxError| error).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| -> Result<(), String> {
        let heap = recovered_heap(crash, &options())?;
        let found = heap.view(|view| {
            let block = view.root::<u64>("long").unwrap()?;
            Some((0..1000).map(|number| view.read(block.element(number)).unwrap()).collect::<Vec<u64>>())
        });
        match found {
            None if crash.acked().is_empty() => Ok(()),
            Some(found) if found == contents => Ok(()),
            Some(found) => Err(format!("{:?} is wrong", found.iter().zip(&contents).find(|(a, b)| a != b))),
            None => Err("the block is lost".to_owned()),
        }
    };
    let image = sim.to_image();
    Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(64).check(&image, operation, check);
}
