//! Calls that a view or a heap refuses: which arguments they refuse, and that a refused call changes nothing.

use super::prelude::*;
use pm_alloc::{FreeError, HeapError, Piece, View};
use pm_core::{InPool, Persist, PlaceError, PoolError};

const HEAP_BYTES: u64 = 4 << 20;
const CHUNK_BYTES: u64 = 64 << 10;
const SLOTS: u64 = 8;

type Short = [u64; 4];
/// Longer than the values whose contents are logged.
type Long = [u64; 40];

fn options() -> HeapOptions {
    HeapOptions::new().lanes(2).lane_entries(60).chunk_bytes(CHUNK_BYTES)
}

/// A heap of short chunks, with a block of words as the root "slots".
fn heap() -> Heap {
    let heap = Heap::format(Region::anonymous(HEAP_BYTES).unwrap(), &options()).unwrap();
    heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(SLOTS)?;
        tx.set_root("slots", slots)
    })
    .unwrap();
    heap
}

/// A slot, for links to any type.
fn slot<'p, T: InPool<'p>>(view: &View<'p>, number: u64) -> Link<'p, Link<'p, T>> {
    let slots = view.root::<u64>("slots").unwrap().unwrap();
    link_to(slots.element(number).offset())
}

/// Stores a link to any offset in a slot.
fn aim(view: &View<'_>, number: u64, at: u64) {
    view.store_u64(link_to(slot::<u64>(view, number).offset()), at).unwrap();
}

/// The offsets of allocated blocks, and the contents of the slots. Asserts that no header is corrupted.
fn state(heap: &Heap) -> (Vec<u64>, Vec<u64>) {
    assert_clean(heap);
    let word = |view: &View<'_>, number| view.read(slot::<u64>(view, number)).unwrap().offset();
    (heap.blocks(), heap.view(|view| (0..SLOTS).map(|number| word(view, number)).collect()))
}

/// The error of a call that the heap refuses. Asserts that the call changes nothing.
fn refused(heap: &Heap, call: impl for<'p> FnOnce(&View<'p>) -> Result<(), TxError>) -> TxError {
    let before = (state(heap), heap.stats());
    let Err(error) = heap.view(call) else { panic!("the call succeeded") };
    assert_eq!((state(heap), heap.stats()), before, "{error}");
    error
}

fn refused_place(heap: &Heap, call: impl for<'p> FnOnce(&View<'p>) -> Result<(), TxError>) -> PlaceError {
    match refused(heap, call) {
        TxError::Place(error) => error,
        error => panic!("{error:?}"),
    }
}

fn refused_free(heap: &Heap) -> FreeError {
    match refused(heap, |view| view.unlink_and_free(slot::<Long>(view, 0))) {
        TxError::Free(error) => error,
        error => panic!("{error:?}"),
    }
}

/// The error of each allocating call on slot 0.
fn refusals(heap: &Heap) -> [TxError; 3] {
    [
        refused(heap, |view| view.alloc_and_link(slot::<Short>(view, 0), &[1; 4]).map(drop)),
        refused(heap, |view| view.alloc_and_link(slot::<Long>(view, 0), &[1; 40]).map(drop)),
        refused(heap, |view| view.alloc_uninit_and_link(slot::<Long>(view, 0), 1).map(drop)),
    ]
}

#[test]
fn occupied_slot_keeps_its_link() {
    let heap = heap();
    let (at, linked) = heap.view(|view| {
        let slot = slot::<Long>(view, 0);
        (slot.offset(), view.alloc_and_link(slot, &[1; 40]).unwrap().offset())
    });
    for error in refusals(&heap) {
        let TxError::Occupied { slot, linked: found } = error else { panic!("{error:?}") };
        assert_eq!((slot, found), (at, linked));
    }
}

#[test]
fn slot_outside_heap_is_refused() {
    let heap = heap();
    let aside = heap.view(|view| slot::<u64>(view, 0).offset()) + 4;
    let everywhere = [0, 8, HEAP_BYTES, u64::MAX - 7, aside];
    for offset in everywhere {
        let errors = [
            refused_place(&heap, |view| view.alloc_and_link(link_to(offset), &[1_u64; 4]).map(drop)),
            refused_place(&heap, |view| view.alloc_and_link(link_to(offset), &[1_u64; 40]).map(drop)),
            refused_place(&heap, |view| view.alloc_uninit_and_link::<u64>(link_to(offset), 1).map(drop)),
            refused_place(&heap, |view| view.unlink_and_free::<u64>(link_to(offset))),
        ];
        for error in errors {
            let is_right = match error {
                PlaceError::Null => offset == 0,
                PlaceError::Misaligned { .. } => offset == aside,
                PlaceError::OutOfRange { .. } => offset != 0 && offset != aside,
                _ => false,
            };
            assert!(is_right, "{offset}: {error:?}");
        }
    }
}

#[test]
fn free_of_null_slot_is_refused() {
    let heap = heap();
    assert_eq!(refused_place(&heap, |view| view.unlink_and_free(slot::<Long>(view, 0))), PlaceError::Null);
}

#[test]
fn free_of_slot_without_block_is_refused() {
    let heap = heap();
    let (block, long) = heap.view(|view| {
        let block = view.alloc_and_link(slot::<Long>(view, 1), &[1; 40]).unwrap();
        let long = view.alloc_uninit_and_link(slot::<u8>(view, 2), 3 * CHUNK_BYTES).unwrap();
        (block.offset(), long.offset())
    });
    let layout = heap.layout();
    let chunks_end = layout.chunk_offset(heap.stats().chunks);
    let inside = |offset| FreeError::NotABlock { offset };
    let outside = |offset| FreeError::OutsideHeap { offset };
    let cases = [
        inside(block + 64),
        inside(block + 320),
        inside(layout.chunks_start),
        // The start of the next chunk's first block, if the long block did not cover it.
        inside(long + CHUNK_BYTES),
        FreeError::Misaligned { offset: block + 8 },
        FreeError::AlreadyFree { offset: layout.chunk_offset(layout.chunk_of(block).unwrap() + 1) - 64 },
        outside(1),
        outside(8),
        outside(63),
        outside(64),
        outside(4096),
        outside(layout.chunks_start - 64),
        outside(chunks_end),
        outside(HEAP_BYTES),
        outside(layout.chunk_offset(1 << 20)),
        outside(1 << 63),
        outside(u64::MAX - 63),
        outside(u64::MAX),
    ];
    for expected in cases {
        let (FreeError::NotABlock { offset }
        | FreeError::OutsideHeap { offset }
        | FreeError::AlreadyFree { offset }
        | FreeError::Misaligned { offset }) = expected
        else {
            panic!("{expected:?}")
        };
        heap.view(|view| aim(view, 0, offset));
        assert_eq!(refused_free(&heap), expected);
    }
}

#[test]
fn double_free_through_two_slots_is_refused() {
    let heap = heap();
    let block = heap.view(|view| {
        let block = view.alloc_and_link(slot::<Long>(view, 0), &[1; 40]).unwrap();
        // An allocated block after it, so that it is not coalesced with the free extent there.
        view.alloc_and_link(slot::<Long>(view, 1), &[2; 40]).unwrap();
        aim(view, 2, block.offset());
        view.unlink_and_free(slot::<Long>(view, 2)).unwrap();
        assert!(view.read(slot::<Long>(view, 2)).unwrap().is_null());
        block.offset()
    });
    assert_eq!(refused_free(&heap), FreeError::AlreadyFree { offset: block });
    heap.view(|view| {
        aim(view, 0, 0);
        let other = view.read(view.read(slot::<Long>(view, 1)).unwrap()).unwrap();
        assert_eq!(other, [2; 40], "the adjacent block is unchanged");
    });
    assert_eq!(refused_place(&heap, |view| view.unlink_and_free(slot::<Long>(view, 2))), PlaceError::Null);
}

#[test]
fn calls_inside_transaction_on_same_heap_are_refused() {
    let (heap, other) = (heap(), heap());
    heap.view(|view| view.alloc_and_link(slot::<Long>(view, 1), &[1; 40]).map(drop)).unwrap();
    heap.transact(|tx| {
        let block = tx.alloc(&[9_u64; 4])?;
        let before = heap.blocks();
        heap.view(|view| {
            let errors = [
                view.alloc_and_link(slot::<Short>(view, 0), &[1; 4]).map(drop),
                view.alloc_and_link(slot::<Long>(view, 0), &[1; 40]).map(drop),
                view.alloc_uninit_and_link(slot::<Long>(view, 0), 1).map(drop),
                view.unlink_and_free(slot::<Long>(view, 1)),
            ];
            for error in errors {
                assert!(matches!(error, Err(TxError::Nested)), "{error:?}");
            }
            assert!(view.read(slot::<Long>(view, 0)).unwrap().is_null());
            assert!(!view.read(slot::<Long>(view, 1)).unwrap().is_null());
        });
        assert_eq!(heap.blocks(), before);
        // Calls on another heap are not nested.
        other.view(|view| {
            view.alloc_and_link(slot::<Long>(view, 0), &[1; 40])?;
            view.unlink_and_free(slot::<Long>(view, 0))
        })?;
        tx.set_root("block", block)
    })
    .unwrap();
    assert_eq!(state(&heap).0.len(), 3, "the transaction commits");
    assert_eq!(state(&other).0.len(), 1);
}

#[test]
fn full_heap_refuses_until_block_is_freed() {
    let heap = heap();
    // Allocates blocks of one length while there is room, then of half the length, until no line is free.
    let mut fillers = Vec::new();
    let mut bytes = CHUNK_BYTES - 128;
    while bytes > 0 {
        match heap.transaction(|tx| tx.alloc_uninit::<u8>(bytes).map(Link::offset)) {
            Ok(filler) => fillers.push(filler),
            Err(TxError::Space(SpaceError::Full { .. })) => bytes /= 2,
            Err(error) => panic!("{error:?}"),
        }
    }
    for error in refusals(&heap) {
        assert!(matches!(error, TxError::Space(SpaceError::Full { quarantined: false, .. })), "{error:?}");
    }
    heap.view(|view| {
        aim(view, 1, fillers[0]);
        view.unlink_and_free(slot::<u8>(view, 1)).unwrap();
        view.alloc_and_link(slot::<Short>(view, 0), &[1; 4]).unwrap();
        view.alloc_and_link(slot::<Long>(view, 1), &[2; 40]).unwrap();
        view.alloc_uninit_and_link(slot::<Long>(view, 2), 1).unwrap();
    });
    assert_eq!(state(&heap).0.len(), 1 + fillers.len() - 1 + 3);
}

#[test]
fn impossible_lengths_are_refused() {
    let heap = heap();
    for count in [u64::MAX, u64::MAX / 320, 1 << 40] {
        let error = refused(&heap, |view| view.alloc_uninit_and_link(slot::<Long>(view, 0), count).map(drop));
        assert!(matches!(error, TxError::Space(_)), "{count}: {error:?}");
    }
}

#[test]
fn block_longer_than_chunk_keeps_contents() {
    const WORDS: usize = 3 * 8192 + 100;
    let heap = heap();
    let value: Box<[u64; WORDS]> = vec![7; WORDS].try_into().unwrap();
    let empty = state(&heap);
    for round in 0..50 {
        heap.view(|view| {
            let filled = view.alloc_and_link(slot::<[u64; WORDS]>(view, 0), &value).unwrap();
            let unfilled = view.alloc_uninit_and_link(slot::<u8>(view, 1), 2 * CHUNK_BYTES + round).unwrap();
            let (start, end) = (filled.offset(), filled.offset() + 8 * WORDS as u64);
            assert!(unfilled.offset() >= end || unfilled.offset() + 2 * CHUNK_BYTES + round <= start);
            let mut found = vec![0; 8 * WORDS];
            view.read_bytes(link_to(start), &mut found).unwrap();
            assert!(found.chunks(8).all(|word| word == 7_u64.to_le_bytes()));
        });
        assert_eq!(state(&heap).0.len(), 3);
        heap.view(|view| {
            view.unlink_and_free(slot::<[u64; WORDS]>(view, 0)).unwrap();
            view.unlink_and_free(slot::<u8>(view, 1)).unwrap();
        });
        assert_eq!(state(&heap), empty);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C, align(4096))]
struct Page {
    words: [u64; 512],
}

#[test]
fn value_has_alignment_of_its_type() {
    let heap = heap();
    let empty = state(&heap);
    heap.view(|view| {
        // A short block is allocated before each, so that the next free line is not aligned to a page.
        view.alloc_and_link(slot::<Short>(view, 0), &[1; 4]).unwrap();
        let filled = view.alloc_and_link(slot(view, 1), &Page { words: [5; 512] }).unwrap();
        view.alloc_and_link(slot::<Short>(view, 2), &[1; 4]).unwrap();
        let unfilled = view.alloc_uninit_and_link(slot::<Page>(view, 3), 2).unwrap();
        assert_eq!((filled.offset() % 4096, unfilled.offset() % 4096), (0, 0));
        assert_eq!(view.read(filled).unwrap(), Page { words: [5; 512] });
    });
    assert_eq!(state(&heap).0.len(), 5);
    heap.view(|view| {
        [0, 2].iter().for_each(|number| view.unlink_and_free(slot::<Short>(view, *number)).unwrap());
        [1, 3].iter().for_each(|number| view.unlink_and_free(slot::<Page>(view, *number)).unwrap());
    });
    assert_eq!(state(&heap), empty);
    // The block is longer than the part of a chunk after its first multiple of the alignment.
    let error = refused(&heap, |view| {
        view.alloc_uninit_and_link(slot::<Page>(view, 0), CHUNK_BYTES / 4096).map(drop)
    });
    assert!(matches!(error, TxError::Space(SpaceError::Alignment { align_bytes: 4096, .. })), "{error:?}");
}

#[test]
fn pair_must_be_aligned_and_inside_heap() {
    let heap = heap();
    heap.view(|view| {
        let words = view.alloc_and_link(slot::<Short>(view, 0), &[1, 2, 3, 4]).unwrap();
        let at = |offset| link_to::<[u64; 2]>(offset);
        let refused = |offset| match view.store_u64_pair(at(offset), [8, 9]).unwrap_err() {
            TxError::Place(error) => error,
            error => panic!("{error:?}"),
        };
        assert_eq!(refused(0), PlaceError::Null);
        for aside in [words.offset() + 8, words.offset() + 24] {
            assert_eq!(refused(aside), PlaceError::Misaligned { offset: aside, align_bytes: 16 });
        }
        assert!(matches!(refused(words.offset() + 4), PlaceError::Misaligned { .. }));
        let outside = [16, heap.pool().data().end, HEAP_BYTES - 8, u64::MAX - 15];
        outside.iter().for_each(|offset| assert!(matches!(refused(*offset), PlaceError::OutOfRange { .. })));
        assert_eq!(view.read(words).unwrap(), [1, 2, 3, 4], "nothing was stored");

        view.store_u64_pair(at(words.offset() + 16), [8, 9]).unwrap();
        assert_eq!(view.read(words).unwrap(), [1, 2, 8, 9]);
    });
    assert_eq!(state(&heap).0.len(), 2);
}

/// On a full file system, a block is allocated where a former block was, even if that extent is not the first one that is tried.
#[test]
fn unlogged_block_is_allocated_where_medium_has_room() {
    let unlogged = UnloggedHeap::new(Heap::format(Region::anonymous(1 << 20).unwrap(), &options()).unwrap());
    let blocks = [1000; 3].map(|bytes| unlogged.alloc(bytes, 64).unwrap());
    let backed = blocks[0] - 8..blocks[2] + 1000;
    let alloc = || unlogged.alloc_if(500, 64, |at, len| backed.start <= at && at + len <= backed.end);
    assert!(matches!(alloc(), Err(UnloggedError::NoBacking)));
    unlogged.free(blocks[0]).unwrap();
    assert!(backed.contains(&alloc().unwrap()));
    assert!(unlogged.alloc(500, 64).is_ok(), "extents without backing are free again");
}

/// The bytes between the last chunk and the end of the pool's data area are not copied, because a sparse file would grow by them.
#[test]
fn copy_excludes_bytes_after_last_chunk() {
    let options = options().chunk_bytes(1 << 20);
    let unlogged = UnloggedHeap::new(Heap::format(Region::anonymous(HEAP_BYTES).unwrap(), &options).unwrap());
    let block = unlogged.alloc(1000, 64).unwrap();
    let (heap, layout) = (unlogged.heap(), unlogged.heap().layout());
    let chunks_end = layout.chunk_offset(layout.chunks_before(heap.pool().data().end));
    assert!(heap.pool().data().end - chunks_end > 64 << 10);
    let copy = Region::anonymous(HEAP_BYTES).unwrap();
    let mut after_bytes = 0;
    unlogged.freeze().pieces(|piece| match piece {
        Piece::Bytes(range) => {
            after_bytes += range.end.saturating_sub(range.start.max(chunks_end));
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
            heap.pool().pmem().load(range.start, &mut bytes);
            copy.store(range.start, &bytes);
        }
        Piece::Word { offset, word } => copy.store_u64(offset, word),
        other => panic!("{other:?}"),
    });
    assert_eq!(after_bytes, 4096, "the backup of the pool's header");
    let copy = Heap::attach(any(copy), &options).unwrap();
    assert_eq!((copy.blocks(), copy.check().is_clean()), (vec![block], true));
    assert_eq!(copy.pool().header_state(), heap.pool().header_state());
}

/// Recovery of the second heap would raise the checkpoint LSN of the first, and both would allocate the same blocks.
#[test]
fn second_heap_on_same_region_is_refused() {
    let heap = heap();
    let second = Heap::attach(any(heap.pool().pmem()), &options());
    assert!(matches!(second, Err(HeapError::Pool(PoolError::InUse))), "{second:?}");
}

#[test]
fn sparse_pool_without_a_heap_keeps_its_holes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.pm");
    let options = pm_core::PoolOptions::new().with_logged_roots();
    let sparse = pm_core::RegionOptions::new().sparse(true);
    drop(pm_core::Pool::create(&path, HEAP_BYTES, &sparse, &options).unwrap());
    let block_count = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
    let before = block_count();
    let refused = Heap::open(&path, &HeapOptions::new());
    assert!(matches!(refused, Err(HeapError::NotAHeap)), "{refused:?}");
    assert_eq!(block_count(), before);
}
