//! Two threads that acquire the locks, in all orders with up to two preemptions: `RUSTFLAGS="--cfg loom" cargo test -p pm-alloc --lib interleaved`.

use super::fixture::{join, layout};
use crate::format::{LINE_BYTES, Lsn};
use crate::space::{FreeError, Reservation, Space, SpaceError, SpaceOptions, Unlogged};
use loom::sync::Arc;
use pm_core::{Pmem, Region};
use std::collections::BTreeMap;

/// A heap of `chunks` chunks of 4 KiB, and two arenas.
fn heap(chunks: u64) -> (Region, Space) {
    heap_of(chunks, 4096)
}

fn heap_of(chunks: u64, chunk_bytes: u64) -> (Region, Space) {
    let layout = layout(chunk_bytes);
    let region = Region::anonymous(layout.chunk_offset(chunks)).unwrap();
    Space::format_chunks(&region, &layout, 0..chunks);
    let options = SpaceOptions { arena_count: Some(2), ..SpaceOptions::default() };
    let space = Space::open(layout, chunks, options);
    (region, space)
}

fn allocate(arena: usize, space: &Space, region: &Region, lines: u64) -> Option<u64> {
    let mut reservation = space.reserve_in(arena, region, lines, 64, Lsn::MAX).ok()?;
    join(space, region, &mut reservation, Lsn::ZERO);
    let payload = reservation.carve(lines, 64).unwrap().start;
    for (offset, word) in reservation.headers() {
        region.store_u64(offset, word);
    }
    space.settle(reservation, Lsn::ZERO);
    Some(payload)
}

fn check(blocks: &[(u64, u64)]) {
    let mut ends = BTreeMap::new();
    for (payload, lines) in blocks {
        assert_eq!(ends.insert(*payload, payload + lines * LINE_BYTES), None);
    }
    let all: Vec<_> = ends.into_iter().collect();
    assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{all:x?}");
}

/// Runs two threads with up to two preemptions.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

/// Two threads allocate from one chunk, and one of them frees a block of the other's arena.
#[test]
fn two_threads_share_a_chunk() {
    model(|| {
        let (region, space) = heap(1);
        let first = allocate(0, &space, &region, 20).unwrap();
        let both = Arc::new((region, space));
        let other = Arc::clone(&both);
        let thread = loom::thread::spawn(move || {
            let (region, space) = &*other;
            Unlogged::new(space, region, false).free(first).unwrap();
            allocate(1, space, region, 20)
        });
        let (region, space) = &*both;
        let own = allocate(0, space, region, 20);
        let others = thread.join().unwrap();
        let blocks: Vec<_> = [own, others].into_iter().flatten().map(|payload| (payload, 20)).collect();
        check(&blocks);
        assert_eq!(space.take_corruption(), []);
    });
}

/// Reserves a line for a transaction, which stays open.
fn reserve_open(arena: usize, space: &Space, region: &Region) -> Result<Reservation, SpaceError> {
    let mut reservation = space.reserve_in(arena, region, 1, 64, Lsn::ZERO)?;
    join(space, region, &mut reservation, Lsn::ZERO);
    Ok(reservation)
}

/// Two transactions each get a part of the last free extent, although each reserves the whole extent until the trim.
#[test]
fn two_open_transactions_share_the_last_extent() {
    model(|| {
        let both = Arc::new(heap_of(1, 1 << 15));
        let other = Arc::clone(&both);
        let thread = loom::thread::spawn(move || {
            let (region, space) = &*other;
            let reservation = reserve_open(1, space, region).unwrap();
            space.return_unused(reservation);
        });
        let (region, space) = &*both;
        let own = reserve_open(0, space, region).unwrap();
        thread.join().unwrap();
        space.return_unused(own);
        assert_eq!(space.stats().free_bytes, 511 * LINE_BYTES);
        assert_eq!(space.take_corruption(), []);
    });
}

/// A free chunk moves to the other arena while a thread frees a block in it a second time.
#[test]
fn free_chunk_changes_arenas() {
    model(|| {
        let (region, space) = heap(1);
        let gone = allocate(0, &space, &region, 63).unwrap();
        Unlogged::new(&space, &region, false).free(gone).unwrap();
        // Releases the quarantined block.
        assert_eq!(space.reserve_in(0, &region, 64, 64, Lsn::MAX).map(|_| ()).is_err(), true);
        let both = Arc::new((region, space));
        let other = Arc::clone(&both);
        let thread = loom::thread::spawn(move || {
            let (region, space) = &*other;
            space.begin_free(region, gone).map(|_| ())
        });
        let (region, space) = &*both;
        let own = allocate(1, space, region, 30).unwrap();
        let freed = thread.join().unwrap();
        // Either the block is still free, or this call frees the new block at the same offset.
        assert!(
            freed.is_ok()
                || matches!(freed, Err(FreeError::AlreadyFree { .. } | FreeError::NotABlock { .. }))
        );
        assert_eq!(own, gone);
    });
}

#[test]
fn huge_and_small_block_do_not_overlap() {
    model(|| {
        let (region, space) = heap(2);
        let both = Arc::new((region, space));
        let other = Arc::clone(&both);
        let thread = loom::thread::spawn(move || {
            let (region, space) = &*other;
            allocate(1, space, region, 100)
        });
        let (region, space) = &*both;
        let small = allocate(0, space, region, 10);
        let huge = thread.join().unwrap();
        let blocks = [small.map(|payload| (payload, 10)), huge.map(|payload| (payload, 100))];
        check(&blocks.into_iter().flatten().collect::<Vec<_>>());
        assert!(small.is_some() || huge.is_some());
        assert_eq!(space.take_corruption(), []);
    });
}
