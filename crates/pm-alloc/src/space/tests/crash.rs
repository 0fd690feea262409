//! Crashes while headers are stored without the log: while chunks are formatted, a freed huge block is split, and chunks are joined for a huge block.
//! The chain is intact after each crash, and each flush and fence there is needed.

use super::fixture::{allocate_unlogged, join, layout};
use crate::format::Lsn;
use crate::layout::Layout;
use crate::space::{CheckReport, Reservation, Space, SpaceOptions, Unlogged};
use pm_core::{FenceError, Pmem};
use pm_crashsim::{Crash, Explorer, Image, Lints, Model, Run, SimPmem};

const CHUNKS: u64 = 3;

/// The space of a new heap, or of a heap that is opened after another process was killed.
fn open(is_new: bool) -> Space {
    Space::open(
        layout(4096),
        CHUNKS,
        SpaceOptions { arena_count: Some(1), is_new, ..SpaceOptions::default() },
    )
}

/// Kills the process that runs `first` at each point, and then crashes the machine at each point of `second`.
fn explore_restarted(
    image: &Image,
    first: impl Fn(&Run<()>) + Sync,
    second: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    for model in [Model::Px86Line, Model::Chunk8] {
        let explorer = Explorer::new(model).crashes(1).lints(Lints::default());
        let coverage = explorer.check_restarted(image, &first, &second, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

fn image(make: impl FnOnce(&SimPmem)) -> Image {
    let sim = SimPmem::new(layout(4096).chunk_offset(CHUNKS));
    make(&sim);
    sim.to_image()
}

/// A heap whose chunks were covered by one block, which was filled and freed.
fn with_freed_huge_block() -> Image {
    image(|sim| {
        Space::format_chunks(sim, &layout(4096), 0..CHUNKS);
        let space = open(true);
        let block = allocate_unlogged(&space, sim, 150, 64).unwrap();
        sim.store(block, &[0xaa; 150 * 64 - 8]);
        Unlogged::new(&space, sim, false).free(block).unwrap();
    })
}

fn persist_word<P: Pmem>(pmem: &P, (offset, word): (u64, u64)) -> Result<Lsn, FenceError> {
    pmem.store_u64(offset, word);
    pmem.persist(offset, 8)?;
    Ok(Lsn::ZERO)
}

/// The report of a check, if the chain is intact.
fn intact_report(crash: &Crash<()>) -> Result<CheckReport, String> {
    let report = CheckReport::of(&crash.pmem(), &layout(4096), CHUNKS, |_| ());
    if report.corruptions.is_empty() { Ok(report) } else { Err(format!("{:x?}", report.corruptions)) }
}

fn has_acknowledged_block(crash: &Crash<()>) -> Result<(), String> {
    let blocks = intact_report(crash)?.allocated_blocks;
    let is_due = !crash.acked().is_empty();
    if blocks == 1 || blocks == 0 && !is_due { Ok(()) } else { Err(format!("{blocks} blocks")) }
}

fn explore(
    image: &Image,
    operation: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    for model in Model::ALL {
        let explorer = Explorer::new(model).kills(1).lints(Lints::default());
        let coverage = explorer.check(image, &operation, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
    let mut redundant = Explorer::default().kills(1).redundant_sites(image, &operation, &check).unwrap();
    redundant
        .retain(|site| site.location.file().contains("/space/") && !site.location.file().contains("/tests/"));
    assert!(redundant.is_empty(), "redundant: {redundant:#?}");
}

#[test]
fn formatted_chunks_are_durable() {
    let operation = |run: &Run<()>| {
        Space::format_chunks(run.pmem(), &layout(4096), 0..CHUNKS);
        run.pmem().fence().unwrap();
        run.ack(());
    };
    explore(&image(|_| ()), operation, |crash| {
        if crash.acked().is_empty() { Ok(()) } else { intact_report(crash).map(|_| ()) }
    });
}

/// One thread splits a freed huge block into chunks, and another thread allocates in the second chunk, with its own fence.
#[test]
fn split_of_freed_huge_block_is_atomic() {
    let image = with_freed_huge_block();
    let operation = |run: &Run<()>| {
        let space = open(true);
        // These are in the third chunk and in the first.
        let held = [(); 2].map(|()| space.reserve(run.pmem(), 63, 64, Lsn::MAX).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut second = space.reserve(run.pmem(), 63, 64, Lsn::MAX).unwrap();
                assert_eq!(second.carve(63, 64).unwrap().start, layout(4096).first_payload(1));
                second.headers().for_each(|header| assert!(persist_word(run.pmem(), header).is_ok()));
                space.settle(second, Lsn::ZERO);
                run.ack(());
            });
        });
        held.into_iter().for_each(|reservation| space.return_unused(reservation));
    };
    explore(&image, operation, has_acknowledged_block);
}

/// The contents of a huge block overwrite the headers of its chunks before the block is committed.
#[test]
fn join_of_chunks_is_atomic() {
    let image = image(|sim| Space::format_chunks(sim, &layout(4096), 0..CHUNKS));
    let covered = Layout::header_offset_of(layout(4096).first_payload(1));
    let operation = |run: &Run<()>| {
        let space = open(true);
        let mut reservation = space.reserve(run.pmem(), 150, 64, Lsn::MAX).unwrap();
        join(&space, run.pmem(), &mut reservation, Lsn::ZERO);
        let block = reservation.carve(150, 64).unwrap().start;
        assert_eq!(block, layout(4096).first_payload(0));
        // Writes at the end of the first chunk and at the start of the third, but not at the start of the second.
        for chunk in [1, 2] {
            let header = if chunk == 1 { layout(4096).chunk_offset(1) - 8 } else { covered + 4096 };
            run.pmem().store_u64(header, 0xaaaa);
        }
        reservation.headers().for_each(|header| assert!(persist_word(run.pmem(), header).is_ok()));
        space.settle(reservation, Lsn::ZERO);
        run.ack(());
    };
    explore(&image, operation, |crash| {
        let blocks = intact_report(crash)?.allocated_blocks;
        let stale = crash.pmem().load_u64(covered) != 0;
        let is_due = !crash.acked().is_empty();
        let is_right = if is_due { blocks == 1 && !stale } else { blocks <= 1 };
        if is_right { Ok(()) } else { Err(format!("{blocks} blocks; a stale header: {stale}")) }
    });
}

/// A process splits a huge block, and is killed before the header of the first chunk, which is stored last, is durable. The next process allocates in
/// the second chunk, which the huge block still covers until that header is durable.
#[test]
fn split_by_killed_process_is_durable_before_use() {
    let image = with_freed_huge_block();
    let first = |run: &Run<()>| {
        let space = open(false);
        space.return_unused(space.reserve(run.pmem(), 63, 64, Lsn::MAX).unwrap());
        space.return_unused(space.reserve(run.pmem(), 64, 64, Lsn::MAX).unwrap());
    };
    let allocated_in_second = |run: &Run<()>, space: &Space, held: &mut Vec<Reservation>| {
        let mut reservation = space.reserve(run.pmem(), 63, 64, Lsn::MAX).unwrap();
        join(space, run.pmem(), &mut reservation, Lsn::ZERO);
        let is_in_second =
            reservation.carve(63, 64).is_some_and(|block| block.start == layout(4096).first_payload(1));
        if is_in_second {
            reservation.headers().for_each(|header| assert!(persist_word(run.pmem(), header).is_ok()));
            space.settle(reservation, Lsn::ZERO);
            run.ack(());
        } else {
            held.push(reservation);
        }
        is_in_second
    };
    let second = |run: &Run<()>| {
        let space = open(false);
        let mut held = Vec::new();
        // The fence of the thread that commits does not cover the flushes of the thread that read the first headers.
        if !allocated_in_second(run, &space, &mut held) {
            std::thread::scope(|scope| {
                scope.spawn(|| while !allocated_in_second(run, &space, &mut held) {});
            });
        }
        held.into_iter().for_each(|reservation| space.return_unused(reservation));
    };
    explore_restarted(&image, first, second, has_acknowledged_block);
}
