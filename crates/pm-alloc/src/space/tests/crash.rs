//! Crashes where headers are stored without the log: where chunks are made, parted after a long block, and joined for
//! one. The chain is whole after each, and each flush and fence there is missed by a test.

use super::fixture::{join, layout};
use crate::format::Lsn;
use crate::layout::Layout;
use crate::space::{CheckReport, Reservation, Space, SpaceOptions};
use pm_core::{FenceError, Pmem};
use pm_crashsim::{Crash, Explorer, Image, Lints, Model, Run, SimPmem};

const CHUNKS: u64 = 3;

fn open() -> Space {
    let options = SpaceOptions { arena_count: Some(1), is_new: true, ..SpaceOptions::default() };
    Space::open(layout(4096), CHUNKS, options)
}

/// As a process does that follows one that was killed.
fn reopen() -> Space {
    let options = SpaceOptions { arena_count: Some(1), ..SpaceOptions::default() };
    Space::open(layout(4096), CHUNKS, options)
}

/// Kills `first` everywhere, and crashes `second` everywhere. With each flush or fence of the space left out, a test must fail.
fn explore_restarted(
    image: &Image,
    first: impl Fn(&Run<()>) + Sync,
    second: impl Fn(&Run<()>) + Sync,
    check: impl Fn(&Crash<()>) -> Result<(), String> + Sync,
) {
    let as_result = |process: &(dyn Fn(&Run<()>) + Sync), run: &Run<()>| -> Result<(), String> {
        process(run);
        Ok(())
    };
    for model in [Model::Px86Line, Model::Chunk8] {
        let explorer = Explorer::new(model).crashes(1).lints(Lints::default());
        let first = |run: &Run<()>| as_result(&first, run);
        let second = |run: &Run<()>| as_result(&second, run);
        let coverage = explorer.check_restarted(image, first, second, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

fn image(make: impl FnOnce(&SimPmem)) -> Image {
    let sim = SimPmem::new(layout(4096).chunk_offset(CHUNKS));
    make(&sim);
    sim.to_image()
}

fn persist_word<P: Pmem>(pmem: &P, (offset, word): (u64, u64)) -> Result<Lsn, FenceError> {
    pmem.store_u64(offset, word);
    pmem.persist(offset, 8)?;
    Ok(Lsn::ZERO)
}

/// What is on the medium, if the chain is whole.
fn found(crash: &Crash<()>) -> Result<CheckReport, String> {
    let report = CheckReport::of(&crash.pmem(), &layout(4096), CHUNKS, |_| ());
    if report.corruptions.is_empty() { Ok(report) } else { Err(format!("{:x?}", report.corruptions)) }
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
    assert!(redundant.is_empty(), "left out without being missed: {redundant:#?}");
}

#[test]
fn chunks_made_are_there() {
    let operation = |run: &Run<()>| {
        Space::format_chunks(run.pmem(), &layout(4096), 0..CHUNKS);
        run.pmem().fence().unwrap();
        run.ack(());
    };
    explore(&image(|_| ()), operation, |crash| {
        if crash.acked().is_empty() { Ok(()) } else { found(crash).map(|_| ()) }
    });
}

/// One thread parts the chunks under a freed block, and another one allocates in the second of them, with its own
/// fence.
#[test]
fn a_freed_block_is_parted() {
    let image = image(|sim| {
        Space::format_chunks(sim, &layout(4096), 0..CHUNKS);
        let space = open();
        let block = space.allocate_unlogged(sim, 150, 64, false).unwrap();
        sim.store(block, &[0xaa; 150 * 64 - 8]);
        space.free_unlogged(sim, block, false).unwrap();
    });
    let operation = |run: &Run<()>| {
        let space = open();
        // Of the third chunk and the first.
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
    explore(&image, operation, |crash| {
        let blocks = found(crash)?.allocated_blocks;
        let is_due = !crash.acked().is_empty();
        if blocks == 1 || blocks == 0 && !is_due { Ok(()) } else { Err(format!("{blocks} blocks")) }
    });
}

/// What is written into a long block before it is committed hits the headers of its chunks.
#[test]
fn chunks_are_joined() {
    let image = image(|sim| Space::format_chunks(sim, &layout(4096), 0..CHUNKS));
    let covered = Layout::header_of(layout(4096).first_payload(1));
    let operation = |run: &Run<()>| {
        let space = open();
        let mut reservation = space.reserve(run.pmem(), 150, 64, Lsn::MAX).unwrap();
        join(&space, run.pmem(), &mut reservation, Lsn::ZERO);
        let block = reservation.carve(150, 64).unwrap().start;
        assert_eq!(block, layout(4096).first_payload(0));
        // Where the first chunk ended, and the third began. Nothing is written where the second began.
        for chunk in [1, 2] {
            let header = if chunk == 1 { layout(4096).chunk_offset(1) - 8 } else { covered + 4096 };
            run.pmem().store_u64(header, 0xaaaa);
        }
        reservation.headers().for_each(|header| assert!(persist_word(run.pmem(), header).is_ok()));
        space.settle(reservation, Lsn::ZERO);
        run.ack(());
    };
    explore(&image, operation, |crash| {
        let blocks = found(crash)?.allocated_blocks;
        let stale = crash.pmem().load_u64(covered) != 0;
        let is_due = !crash.acked().is_empty();
        let is_right = if is_due { blocks == 1 && !stale } else { blocks <= 1 };
        if is_right { Ok(()) } else { Err(format!("{blocks} blocks; a stale header: {stale}")) }
    });
}

/// The header of the first chunk is stored last, and a process is killed before it is durable. The next one sees a chunk that is
/// free, and allocates in the second one, which is below a long block for as long as the first header is not durable.
#[test]
fn chunks_parted_by_a_killed_process_are_durable_before_they_are_used() {
    let image = image(|sim| {
        Space::format_chunks(sim, &layout(4096), 0..CHUNKS);
        let space = open();
        let block = space.allocate_unlogged(sim, 150, 64, false).unwrap();
        sim.store(block, &[0xaa; 150 * 64 - 8]);
        space.free_unlogged(sim, block, false).unwrap();
    });
    let first = |run: &Run<()>| {
        let space = reopen();
        space.return_unused(space.reserve(run.pmem(), 63, 64, Lsn::MAX).unwrap());
        space.return_unused(space.reserve(run.pmem(), 64, 64, Lsn::MAX).unwrap());
    };
    let allocated_in_second = |run: &Run<()>, space: &Space, held: &mut Vec<Reservation>| {
        let mut reservation = space.reserve(run.pmem(), 63, 64, Lsn::MAX).unwrap();
        join(space, run.pmem(), &mut reservation, Lsn::ZERO);
        let is_there =
            reservation.carve(63, 64).is_some_and(|block| block.start == layout(4096).first_payload(1));
        if is_there {
            reservation.headers().for_each(|header| assert!(persist_word(run.pmem(), header).is_ok()));
            space.settle(reservation, Lsn::ZERO);
            run.ack(());
        } else {
            held.push(reservation);
        }
        is_there
    };
    let second = |run: &Run<()>| {
        let space = reopen();
        let mut held = Vec::new();
        // The fence of the thread that commits is none for the flushes of the thread that read the first headers.
        if !allocated_in_second(run, &space, &mut held) {
            std::thread::scope(|scope| {
                scope.spawn(|| while !allocated_in_second(run, &space, &mut held) {});
            });
        }
        held.into_iter().for_each(|reservation| space.return_unused(reservation));
    };
    explore_restarted(&image, first, second, |crash| {
        let blocks = found(crash)?.allocated_blocks;
        let is_due = !crash.acked().is_empty();
        if blocks == 1 || blocks == 0 && !is_due { Ok(()) } else { Err(format!("{blocks} blocks")) }
    });
}
