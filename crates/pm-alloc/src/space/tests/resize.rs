//! Blocks that are made longer and shorter where they are, and copies of what is live, against the oracle; and crashes of the former.

use super::copies::copy_of;
use super::fixture::Heap;
use crate::layout::Layout;
use crate::space::{CheckReport, SpaceOptions};
use pm_core::Pmem;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
    /// To so many lines, at most and at least.
    Resize(prop::sample::Index, u64, u64),
    /// The same, where nothing more can be stored to.
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

fn bytes(heap: &Heap, payload: u64, lines: u32) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(Layout::usable_bytes(lines)).unwrap()];
    heap.region.load(payload, &mut bytes);
    bytes
}

/// A copy that is opened has the same blocks with the same contents, and no others.
fn check_copy(heap: &Heap) {
    let copy = copy_of(heap).region;
    let mut blocks = std::collections::BTreeMap::new();
    let report = CheckReport::of(&copy, &heap.layout, heap.chunks, |block| {
        if block.state == crate::format::BlockState::Allocated {
            blocks.insert(block.payload, block.lines);
        }
    });
    assert!(report.is_clean(), "{:?}", report.corruptions);
    for (payload, lines) in &blocks {
        let mut found = vec![0; usize::try_from(Layout::usable_bytes(*lines)).unwrap()];
        copy.load(*payload, &mut found);
        assert!(found == bytes(heap, *payload, *lines), "the block at {payload:#x} has other contents");
    }
    assert_eq!(blocks, heap.blocks, "the same blocks");
}

fn take(heap: &mut Heap, step: &Step) {
    match step {
        Step::Allocate(lines) => {
            if let Ok(payload) = heap.space.allocate_unlogged(&heap.region, *lines, 64, false) {
                let lines = heap.header(payload).expect("just stored").lines;
                heap.fill(payload, u64::from(lines));
                heap.blocks.insert(payload, lines);
            }
        }
        Step::Free(index) => {
            let Some((payload, _)) = block(heap, index) else { return };
            heap.space.free_unlogged(&heap.region, payload, false).unwrap();
            heap.blocks.remove(&payload);
        }
        Step::Resize(index, lines, spare) => {
            let Some((payload, old)) = block(heap, index) else { return };
            let before = bytes(heap, payload, old);
            let wanted = *lines..=lines + spare;
            let resized =
                heap.space.resize_unlogged(&heap.region, payload, wanted, false, |_, _| true).unwrap();
            let new = resized.unwrap_or(old);
            assert!(
                resized.is_none() || u64::from(new) >= *lines,
                "{old} lines, {lines} wanted, {new} found"
            );
            assert_eq!(heap.header(payload).map(|header| header.lines), Some(new));
            let kept = usize::try_from(Layout::usable_bytes(new.min(old))).unwrap();
            assert!(bytes(heap, payload, new)[..kept] == before[..kept], "contents changed");
            heap.fill(payload, u64::from(new));
            heap.blocks.insert(payload, new);
        }
        Step::Refuse(index, lines) => {
            let Some((payload, old)) = block(heap, index) else { return };
            let lines = lines.max(&u64::from(old)) + 1;
            let resized =
                heap.space.resize_unlogged(&heap.region, payload, lines..=lines, false, |_, _| false);
            assert!(resized.unwrap().is_none());
            let refused = heap.space.allocate_unlogged_if(&heap.region, 3, 64, false, |_, _| false);
            assert!(refused.is_err() || refused.is_ok_and(|block| block.is_none()));
            // All else as before is checked after each step.
        }
        Step::Reopen => heap.reopen(),
        Step::Copy => check_copy(heap),
    }
}

fn run(heap: &mut Heap, steps: &[Step]) {
    for step in steps {
        take(heap, step);
        heap.check();
        assert_eq!(heap.space.take_corruption(), []);
        for (payload, lines) in &heap.blocks {
            let found = heap.space.usable_bytes(&heap.region, *payload).unwrap();
            assert_eq!(found, u64::from(*lines) * 64 - 8);
        }
    }
    heap.check_contents();
    check_copy(heap);
    for payload in heap.blocks.keys().copied().collect::<Vec<_>>() {
        heap.free(payload);
    }
    for _ in 0..heap.chunks {
        let lines = heap.layout.chunk_lines() - 1;
        heap.allocate(lines, 64).unwrap();
        heap.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn resized_blocks_keep_their_contents_and_the_chain(
        steps in prop::collection::vec(step(64), 1..60),
        arenas in 1..3_u32,
    ) {
        let options = SpaceOptions { arena_count: Some(arenas), ..SpaceOptions::default() };
        run(&mut Heap::with(12, 4096, options), &steps);
    }

    #[test]
    fn resized_blocks_in_long_chunks_keep_their_contents(steps in prop::collection::vec(step(1024), 1..60)) {
        run(&mut Heap::new(5, 65536), &steps);
    }
}

#[test]
fn a_block_grows_in_place_to_the_end_of_the_heap() {
    let mut heap = Heap::new(4, 4096);
    let payload = heap.allocate(1, 64).unwrap();
    for lines in 2..63 {
        let found =
            heap.space.resize_unlogged(&heap.region, payload, lines..=lines, false, |_, _| true).unwrap();
        assert!(found.is_some_and(|found| u64::from(found) >= lines), "{lines}: {found:?}");
    }
    heap.free(payload);
    // Over chunks.
    let long = heap.space.allocate_unlogged(&heap.region, 64 + 1, 64, false).unwrap();
    for lines in 66..4 * 64 - 1 {
        let found =
            heap.space.resize_unlogged(&heap.region, long, lines..=lines, false, |_, _| true).unwrap();
        assert!(found.is_some_and(|found| u64::from(found) >= lines), "{lines}: {found:?}");
    }
    let found = heap.space.resize_unlogged(&heap.region, long, 256..=256, false, |_, _| true).unwrap();
    assert_eq!(found, None, "the heap ends there");
}

/// The end of the range counts if there is room, otherwise its start.
#[test]
fn block_longer_than_a_chunk_grows_to_the_start_of_the_range_at_least() {
    let heap = Heap::new(6, 4096);
    let allocate = |lines| heap.space.allocate_unlogged(&heap.region, lines, 64, false).unwrap();
    let resize = |block, wanted| heap.space.resize_unlogged(&heap.region, block, wanted, false, |_, _| true);
    let long = allocate(70);
    // In the third chunk.
    let behind = allocate(63);
    assert_eq!(behind, long + 2 * 4096);
    assert_eq!(resize(long, 110..=200).unwrap(), Some(110), "up to 127 lines there is room");
    assert_eq!(resize(long, 111..=u64::MAX).unwrap(), Some(111), "no block has so many lines");
    assert_eq!(resize(long, 111..=200).unwrap(), Some(111), "it has so many");
    assert_eq!(resize(long, 1..=200).unwrap(), Some(111));
    assert_eq!(resize(long, 112..=120).unwrap(), Some(120));
    assert_eq!(resize(long, 128..=200).unwrap(), None);
    heap.space.free_unlogged(&heap.region, behind, false).unwrap();
    let ensure = |_, bytes: u64| bytes <= 64 * 20;
    let resized = heap.space.resize_unlogged(&heap.region, long, 140..=200, false, ensure);
    assert_eq!(resized.unwrap(), Some(140), "the medium has room for 20 lines more");
}

#[cfg(not(loom))]
mod crash {
    use super::super::fixture::layout;
    use super::*;
    use crate::space::Space;
    use pm_crashsim::{Crash, Explorer, Image, Lints, Model, Run, SimPmem};

    const CHUNKS: u64 = 4;

    fn open() -> Space {
        Space::open(layout(4096), CHUNKS, SpaceOptions { arena_count: Some(1), ..SpaceOptions::default() })
    }

    /// One block of `from` lines, or as many as it needs, is resized: after any crash it has its old length or the new one, and after
    /// the acknowledgement the new one; the chain is whole, and flushes and fences are all needed.
    fn resizes(from: u64, to: u64) {
        let sim = SimPmem::new(layout(4096).chunk_offset(CHUNKS));
        Space::format_chunks(&sim, &layout(4096), 0..CHUNKS);
        let payload = open().allocate_unlogged(&sim, from, 64, false).unwrap();
        // What its user wrote hits former headers.
        sim.store(payload, &vec![0xaa; usize::try_from(from * 64 - 8).unwrap()]);
        let image: Image = sim.to_image();
        let operation = |run: &Run<u64>| {
            let resized = open().resize_unlogged(run.pmem(), payload, to..=to, true, |_, _| true).unwrap();
            run.ack(u64::from(resized.unwrap()));
        };
        let check = |crash: &Crash<u64>| {
            let mut blocks = Vec::new();
            let report = CheckReport::of(&crash.pmem(), &layout(4096), CHUNKS, |block| {
                if block.state == crate::format::BlockState::Allocated {
                    blocks.push((block.payload, u64::from(block.lines)));
                }
            });
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
    fn crash_while_a_block_grows_leaves_either_length() {
        resizes(3, 10);
        resizes(3, 63);
    }

    #[test]
    fn crash_while_a_block_shrinks_leaves_either_length() {
        resizes(10, 3);
        resizes(63, 1);
    }

    #[test]
    fn crash_while_a_long_block_grows_leaves_either_length() {
        resizes(70, 100);
        resizes(70, 127);
        resizes(70, 200);
        resizes(127, 130);
    }

    #[test]
    fn crash_while_a_long_block_shrinks_leaves_either_length() {
        resizes(200, 70);
        resizes(255, 127);
        resizes(130, 100);
    }
}
