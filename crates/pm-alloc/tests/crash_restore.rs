//! What opening restores from its copy is durable when it returns, whichever of the two was damaged, and a crash while it is
//! restored harms neither. And the repair of a block's header: the damage is there, or the new header.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Heap, HeapError, HeapInspection, HeapOptions, TxError};
use pm_core::{Pmem as _, Pool, PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Image, Model, Run, SimPmem};
use std::sync::Arc;

const REGION_BYTES: u64 = 1 << 16;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(16).chunk_bytes(4096)
}

/// A heap with three blocks, and where they are.
fn prepared() -> (Image, Vec<u64>) {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let heap = Heap::format(Arc::clone(&sim), &options()).unwrap();
    heap.transaction(|tx| (1..=3_u64).try_for_each(|value| tx.alloc(&value).map(drop)))
        .map_err(|error: TxError| error)
        .unwrap();
    drop(heap);
    // Recovered once, so that nothing in the log is stored over what is damaged below.
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    (sim.to_image(), heap.blocks())
}

fn damaged(image: &Image, offset: u64) -> Image {
    let mut bytes = image.to_bytes();
    bytes[usize::try_from(offset).unwrap()] ^= 0x10;
    Image::from_bytes(bytes)
}

/// The places of the header and of the number of chunks, each with that of its copy.
fn copies(image: &Image) -> [(u64, u64); 2] {
    let pool = Pool::attach_read_only(SimPmem::from_image(image, Model::Px86Line)).unwrap();
    let inspection = HeapInspection::of(&pool).unwrap();
    assert_eq!((inspection.header_damaged, inspection.chunk_count_damaged), ([false; 2], 0));
    let layout = inspection.layout;
    [(layout.heap_start + 48, layout.heap_start + 8192 + 48), layout.chunk_count_offsets().into()]
}

#[test]
fn either_copy_of_what_is_written_twice_is_restored() {
    let (image, blocks) = prepared();
    for (first, second) in copies(&image) {
        for (offset, other) in [(first, second), (second, first)] {
            let image = damaged(&image, offset);
            let pool = Pool::attach_read_only(SimPmem::from_image(&image, Model::Px86Line)).unwrap();
            let seen = HeapInspection::of(&pool).unwrap();
            assert!(seen.header_damaged.contains(&true) || seen.chunk_count_damaged == 1, "{seen:?}");

            let operation = |run: &Run<()>| {
                let heap = Heap::attach(Arc::clone(run.pmem()), &options()).unwrap();
                assert!(heap.opened().header_restored || heap.opened().chunk_count_restored);
                run.ack(());
            };
            let check = |crash: &Crash<()>| -> Result<(), String> {
                if !crash.acked().is_empty() {
                    // The other one may go now.
                    let word = other & !7;
                    let pmem = crash.pmem();
                    pmem.store_u64(word, !pmem.load_u64(word));
                }
                let heap =
                    Heap::attach(Arc::clone(crash.pmem()), &options()).map_err(|error| error.to_string())?;
                assert_eq!(heap.blocks(), blocks);
                Ok(())
            };
            for model in [Model::Eadr, Model::Px86Line] {
                Explorer::new(model).nested_choices_per_point(64).check(&image, operation, check);
            }
        }
    }
}

/// The root directory may be hit, too: the heap is found by its header, and named again.
#[test]
fn a_root_that_is_lost_is_set_again() {
    let (image, blocks) = prepared();
    let bytes = image.to_bytes();
    let name = bytes.windows(13).position(|bytes| bytes == b"pm-alloc.heap").unwrap() as u64;
    let image = damaged(&image, name);
    let operation = |run: &Run<()>| {
        let heap = Heap::attach(Arc::clone(run.pmem()), &options()).unwrap();
        assert!(heap.opened().root_restored);
        run.ack(());
    };
    let check = |crash: &Crash<()>| -> Result<(), String> {
        let heap = Heap::attach(Arc::clone(crash.pmem()), &options()).map_err(|error| error.to_string())?;
        assert_eq!(heap.blocks(), blocks);
        let is_set = !heap.opened().root_restored;
        if is_set || crash.acked().is_empty() { Ok(()) } else { Err("the root is lost again".to_owned()) }
    };
    for model in [Model::Eadr, Model::Px86Line] {
        let coverage = Explorer::new(model).nested_choices_per_point(64).check(&image, operation, check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
    // In another pool's data it is the header of nobody.
    let sim = SimPmem::from_image(&image, Model::Px86Line);
    Pool::format(&sim, &PoolOptions::new().overwrite()).unwrap();
    sim.store_u64(4096 + 64, 1);
    assert!(matches!(Heap::attach(&sim, &options()), Err(HeapError::Root(_))));
}

#[test]
fn a_repair_is_there_or_not() {
    let (image, blocks) = prepared();
    let image = damaged(&image, blocks[1] - 8);
    let operation = |run: &Run<()>| {
        let mut heap = Heap::attach(Arc::clone(run.pmem()), &options()).unwrap();
        let damages = heap.check().damages;
        let [damage] = damages.as_slice() else { panic!("{damages:?}") };
        assert!(heap.repair(damage).unwrap());
        assert!(!heap.repair(damage).unwrap(), "it is there no more");
        run.ack(());
    };
    let check = |crash: &Crash<()>| -> Result<(), String> {
        let heap = Heap::attach(Arc::clone(crash.pmem()), &options()).map_err(|error| error.to_string())?;
        let report = heap.check();
        let is_repaired = report.is_clean() && report.lost_blocks == 1;
        let is_as_before = report.damages.len() == 1 && crash.acked().is_empty();
        let has_others = heap.blocks() == [blocks[0], blocks[2]];
        if (is_repaired || is_as_before) && has_others { Ok(()) } else { Err(format!("{report:?}")) }
    };
    for model in [Model::Eadr, Model::Px86Line] {
        let coverage = Explorer::new(model).nested_choices_per_point(64).check(&image, operation, check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

/// The space behind a damaged header is not handed out before the repair, and is after it.
#[test]
fn what_is_free_behind_a_repair_is_handed_out_again() {
    let (image, blocks) = prepared();
    let sim = Arc::new(SimPmem::from_image(&damaged(&image, blocks[1] - 8), Model::Px86Line));
    let mut heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    // Looked at, and in quarantine.
    heap.transaction(|tx| tx.alloc(&4_u64).map(drop)).unwrap();
    let fill = |heap: &Heap<Arc<SimPmem>>| {
        let mut count = 0;
        while heap.transaction(|tx| tx.alloc(&5_u64).map(drop)).map_err(|error: TxError| error).is_ok() {
            count += 1;
        }
        count
    };
    fill(&heap);
    for damage in heap.check().damages {
        assert!(heap.repair(&damage).unwrap());
    }
    assert!(fill(&heap) > 32, "the rest of a chunk of 64 lines");
    let report = heap.check();
    assert_eq!((report.is_clean(), report.free_blocks, report.lost_blocks), (true, 0, 1));
}
