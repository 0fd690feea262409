//! Compares resizing in place, and copies of allocated blocks, with the oracle. Also crashes while blocks are resized.

use super::copies::copy_of;
use super::fixture::{Heap, list, resize};
use crate::space::SpaceOptions;
use pm_core::Pmem;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
    /// Resizes to at least the first number of lines, and to at most the sum of both numbers.
    Resize(prop::sample::Index, u64, u64),
    /// The same, but the caller refuses all added lines.
    Refuse(prop::sample::Index, u64),
    Reopen,
    Copy,
}

fn step(chunk_lines: u64) -> impl Strategy<Value = Step> {
    let lines = prop_oneof![4 => 1..20_u64, 2 => 1..chunk_lines, 2 => chunk_lines - 3..5 * chunk_lines];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => lines.clone().prop_map(Step::Allocate),
        3 => index().prop_map(Step::Free),
        8 => (index(), lines.clone(), 0..30_u64).prop_map(|(at, lines, spare)| Step::Resize(at, lines, spare)),
        1 => (index(), lines).prop_map(|(at, lines)| Step::Refuse(at, lines)),
        1 => Just(Step::Reopen),
        1 => Just(Step::Copy),
    ]
}

fn block(heap: &Heap, index: &prop::sample::Index) -> Option<(u64, u32)> {
    heap.blocks.iter().nth(index.index(heap.blocks.len().max(1))).map(|(payload, lines)| (*payload, *lines))
}

/// Asserts that an opened copy has the same blocks with the same contents, and no others.
fn check_copy(heap: &Heap) {
    let copy = copy_of(heap);
    let (report, blocks) = list(&copy.region, &heap.layout, heap.chunks);
    assert!(report.is_clean(), "{:?}", report.corruptions);
    assert_eq!(blocks, heap.blocks, "the same blocks");
    for payload in blocks.into_keys() {
        assert!(copy.bytes(payload) == heap.bytes(payload), "the block at {payload:#x} has other contents");
    }
}

fn take(heap: &mut Heap, step: &Step) {
    match step {
        Step::Allocate(lines) => heap.try_add_unlogged(*lines),
        Step::Free(index) => {
            let Some((payload, _)) = block(heap, index) else { return };
            heap.unlogged().free(payload).unwrap();
            heap.blocks.remove(&payload);
        }
        Step::Resize(index, lines, spare) => {
            let Some((payload, old)) = block(heap, index) else { return };
            let before = heap.bytes(payload);
            let resized = heap.resize(payload, *lines..=lines + spare);
            let new = resized.unwrap_or(old);
            assert!(
                resized.is_none() || u64::from(new) >= *lines,
                "{old} lines, {lines} wanted, {new} found"
            );
            assert_eq!(heap.header(payload).map(|header| header.lines), Some(new));
            heap.blocks.insert(payload, new);
            assert!(heap.bytes(payload).iter().zip(&before).all(|(new, old)| new == old), "contents changed");
            heap.fill(payload, u64::from(new));
        }
        Step::Refuse(index, lines) => {
            let Some((payload, old)) = block(heap, index) else { return };
            let lines = lines.max(&u64::from(old)) + 1;
            let resized = resize(heap.unlogged(), payload, lines..=lines, |_| false);
            assert!(resized.unwrap().is_none());
            let unlogged = heap.unlogged();
            let mut refused: Vec<_> = unlogged.reserve(3, 64).into_iter().collect();
            while let Ok(block) = unlogged.reserve_another(3, 64) {
                refused.push(block);
            }
            // Each step is followed by a check that nothing else has changed.
        }
        Step::Reopen => heap.reopen(),
        Step::Copy => check_copy(heap),
    }
}

fn run(heap: &mut Heap, steps: &[Step]) {
    for step in steps {
        take(heap, step);
        heap.check_lengths();
    }
    heap.check_contents();
    check_copy(heap);
    heap.refill();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn resize_keeps_contents_and_chain(
        steps in prop::collection::vec(step(64), 1..60),
        arenas in 1..3_u32,
    ) {
        let options = SpaceOptions { arena_count: Some(arenas), ..SpaceOptions::default() };
        run(&mut Heap::with(12, 4096, options), &steps);
    }

    #[test]
    fn resize_in_long_chunks_keeps_contents(steps in prop::collection::vec(step(1024), 1..60)) {
        run(&mut Heap::new(5, 65536), &steps);
    }
}

#[test]
fn block_grows_to_end_of_heap() {
    let mut heap = Heap::new(4, 4096);
    let payload = heap.allocate(1, 64).unwrap();
    for lines in 2..63 {
        let found = heap.resize(payload, lines..=lines);
        assert!(found.is_some_and(|found| u64::from(found) >= lines), "{lines}: {found:?}");
    }
    heap.free(payload);
    let huge = heap.allocate_unlogged(64 + 1).unwrap();
    for lines in 66..4 * 64 - 1 {
        let found = heap.resize(huge, lines..=lines);
        assert!(found.is_some_and(|found| u64::from(found) >= lines), "{lines}: {found:?}");
    }
    assert_eq!(heap.resize(huge, 256..=256), None, "the heap ends there");
}

/// The block gets the number of lines at the end of the range if there is room, and otherwise the number at its start.
#[test]
fn huge_block_grows_to_either_end_of_range() {
    let heap = Heap::new(6, 4096);
    let allocate = |lines| heap.allocate_unlogged(lines).unwrap();
    let huge = allocate(70);
    // In the third chunk.
    let after = allocate(63);
    assert_eq!(after, huge + 2 * 4096);
    assert_eq!(heap.resize(huge, 110..=200), Some(110), "there is room for 127 lines");
    assert_eq!(heap.resize(huge, 111..=u64::MAX), Some(111), "no block can have so many lines");
    assert_eq!(heap.resize(huge, 111..=200), Some(111), "the block already has 111 lines");
    assert_eq!(heap.resize(huge, 1..=200), Some(111));
    assert_eq!(heap.resize(huge, 112..=120), Some(120));
    assert_eq!(heap.resize(huge, 128..=200), None);
    heap.unlogged().free(after).unwrap();
    let accepts = |added: core::ops::Range<u64>| added.end - added.start <= 64 * 20;
    let resized = resize(heap.unlogged(), huge, 140..=200, accepts);
    assert_eq!(resized.unwrap(), Some(140), "the medium has room for 20 more lines");
}

#[cfg(not(loom))]
mod crash {
    use super::super::fixture::{allocate_unlogged, layout};
    use super::*;
    use crate::space::{Space, Unlogged};
    use pm_crashsim::{Crash, Explorer, Image, Lints, Model, Run, SimPmem};

    const CHUNKS: u64 = 4;

    fn open() -> Space {
        Space::open(layout(4096), CHUNKS, SpaceOptions { arena_count: Some(1), ..SpaceOptions::default() })
    }

    /// Resizes one block of `from` lines: after any crash it has the old or the new length, and after the acknowledgement the new length. The chain
    /// is intact.
    fn resizes(from: u64, to: u64) {
        let sim = SimPmem::new(layout(4096).chunk_offset(CHUNKS));
        Space::format_chunks(&sim, &layout(4096), 0..CHUNKS);
        let payload = allocate_unlogged(&open(), &sim, from, 64).unwrap();
        // The contents of the block overwrite former headers.
        sim.store(payload, &vec![0xaa; usize::try_from(from * 64 - 8).unwrap()]);
        let image: Image = sim.to_image();
        let operation = |run: &Run<u64>| {
            let space = open();
            let resized = resize(Unlogged::new(&space, run.pmem(), true), payload, to..=to, |_| true);
            run.ack(u64::from(resized.unwrap().unwrap()));
        };
        let check = |crash: &Crash<u64>| {
            let (report, blocks) = list(&crash.pmem(), &layout(4096), CHUNKS);
            let blocks: Vec<_> =
                blocks.into_iter().map(|(payload, lines)| (payload, u64::from(lines))).collect();
            let (old, new) = ((payload, from), (payload, to));
            let is_right = match crash.acked() {
                [] => blocks == [old] || blocks == [new],
                _ => blocks == [new],
            };
            if report.is_clean() && is_right {
                Ok(())
            } else {
                Err(format!("{blocks:?}, {:x?}", report.corruptions))
            }
        };
        for model in Model::ALL {
            let coverage = Explorer::new(model).lints(Lints::default()).check(&image, operation, check);
            assert!(coverage.is_exhaustive(), "{model}: {coverage}");
        }
    }

    #[test]
    fn crash_while_block_grows_leaves_old_or_new_length() {
        resizes(3, 10);
        resizes(3, 63);
    }

    #[test]
    fn crash_while_block_shrinks_leaves_old_or_new_length() {
        resizes(10, 3);
        resizes(63, 1);
    }

    #[test]
    fn crash_while_huge_block_grows_leaves_old_or_new_length() {
        resizes(70, 100);
        resizes(70, 127);
        resizes(70, 200);
        resizes(127, 130);
    }

    #[test]
    fn crash_while_huge_block_shrinks_leaves_old_or_new_length() {
        resizes(200, 70);
        resizes(255, 127);
        resizes(130, 100);
    }
}
