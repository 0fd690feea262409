//! Crashes at every moment of a block write, and of making a disk, under every model of the caches.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Domain, Pmem, Pool, PoolError, PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Image, Lint, Lints, Model, Run, SimPmem};
use pmbd::disk::{read_geometry, write_geometry};
use pmbd::{BlockOp, DiskError, Engine, Geometry, SectorSize};
use std::sync::Arc;

const REGION_BYTES: u64 = 1 << 16;
const START: u64 = 12_288;
const CAPACITY: u64 = 32 << 10;

fn geometry() -> Geometry {
    Geometry::new(START, CAPACITY, SectorSize::B512).unwrap()
}

fn engine(pmem: &Arc<SimPmem>) -> Engine<Arc<SimPmem>> {
    Engine::new(Arc::clone(pmem), geometry()).unwrap()
}

fn read(crash: &Crash<u8>, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    engine(crash.pmem()).execute(offset, BlockOp::Read { out: &mut out }).unwrap();
    out
}

/// A device whose sectors hold 9 where the tests zero them, and 0 where they write.
fn device(nines: &[u64]) -> Image {
    let mut bytes = vec![0; usize::try_from(REGION_BYTES).unwrap()];
    for offset in nines {
        let at = usize::try_from(START + offset).unwrap();
        bytes[at..at + 512].fill(9);
    }
    Image::from_bytes(bytes)
}

/// A write in flight leaves each 8-byte word old or new; an acknowledged one, only new ones.
fn old_or_new(found: &[u8], old: u8, new: u8, acked: bool) -> Result<(), String> {
    for (at, word) in found.chunks(8).enumerate() {
        let is = |byte| word.iter().all(|&b| b == byte);
        if !(is(new) || !acked && is(old)) {
            return Err(format!("word {at} is {word:?}, acknowledged: {acked}"));
        }
    }
    Ok(())
}

/// In the page domain a completed write is in the write cache, and need not be durable.
fn lints(model: Model) -> Lints {
    match model {
        Model::Page => Lints::all_denied().allow(Lint::UnfencedStore),
        _ => Lints::all_denied(),
    }
}

fn explore(
    image: &Image,
    operation: impl Fn(&Run<u8>) + Sync,
    check: impl Fn(&Crash<u8>) -> Result<(), String> + Sync,
) {
    for model in Model::ALL {
        Explorer::new(model).lints(lints(model)).check(image, &operation, &check);
    }
    let mut needless = Explorer::new(Model::Px86Line).needless_sites(image, &operation, &check).unwrap();
    needless.retain(|site| site.location.file().contains("/src/"));
    assert!(needless.is_empty(), "left out without being missed: {needless:#?}");
}

#[test]
fn a_4_kib_write_is_there_whole_once_it_completes() {
    let operation = |run: &Run<u8>| {
        let engine = engine(run.pmem());
        for byte in [1, 2] {
            engine.execute(4096, BlockOp::Write { data: &[byte; 4096], fua: true }).unwrap();
            run.ack(byte);
        }
    };
    let check = |crash: &Crash<u8>| {
        let found = read(crash, 4096, 4096);
        let last = crash.acked().last().copied().unwrap_or(0);
        if last < 2 { old_or_new(&found, last, last + 1, false) } else { old_or_new(&found, 1, 2, true) }
    };
    explore(&Image::zeroed(REGION_BYTES), operation, check);
}

#[test]
fn a_write_without_fua_is_durable_too_where_the_cpu_persists() {
    let operation = |run: &Run<u8>| {
        let engine = engine(run.pmem());
        engine.execute(512, BlockOp::Write { data: &[7; 512], fua: false }).unwrap();
        run.ack(7);
        // Another place, still in flight when the crash comes: it must not take the first along.
        engine.execute(8192, BlockOp::Write { data: &[8; 512], fua: false }).unwrap();
        run.ack(8);
    };
    let check = |crash: &Crash<u8>| {
        // The page domain has a write cache, and says so.
        let promised = crash.pmem().domain() != Domain::Page;
        old_or_new(&read(crash, 512, 512), 0, 7, promised && !crash.acked().is_empty())?;
        old_or_new(&read(crash, 8192, 512), 0, 8, promised && crash.acked().len() == 2)
    };
    explore(&Image::zeroed(REGION_BYTES), operation, check);
}

#[test]
fn zeroes_are_there_once_they_complete_like_any_write() {
    // Discarding has no FUA, and is durable where the CPU persists, as a write without it.
    let operation = |run: &Run<u8>| {
        let engine = engine(run.pmem());
        engine.execute(512, BlockOp::WriteZeroes { len_bytes: 512, fua: true }).unwrap();
        run.ack(1);
        engine.execute(8192, BlockOp::Discard { len_bytes: 512 }).unwrap();
        run.ack(2);
    };
    let check = |crash: &Crash<u8>| {
        let acked = crash.acked().len();
        old_or_new(&read(crash, 512, 512), 9, 0, acked >= 1)?;
        let promised = crash.pmem().domain() != Domain::Page;
        old_or_new(&read(crash, 8192, 512), 9, 0, promised && acked == 2)
    };
    explore(&device(&[512, 8192]), operation, check);
}

#[test]
fn a_flush_makes_all_completed_writes_durable_in_every_domain() {
    let operation = |run: &Run<u8>| {
        let engine = engine(run.pmem());
        engine.execute(512, BlockOp::Write { data: &[7; 512], fua: false }).unwrap();
        engine.execute(8192, BlockOp::WriteZeroes { len_bytes: 512, fua: false }).unwrap();
        engine.execute(0, BlockOp::Flush).unwrap();
        run.ack(1);
    };
    let check = |crash: &Crash<u8>| {
        let acked = !crash.acked().is_empty();
        old_or_new(&read(crash, 512, 512), 0, 7, acked)?;
        old_or_new(&read(crash, 8192, 512), 9, 0, acked)
    };
    let image = device(&[8192]);
    for model in Model::ALL {
        // Where the CPU persists, a Flush has nothing left to wait for, and waits all the same.
        let lints = lints(model).allow(Lint::RedundantFence);
        Explorer::new(model).lints(lints).check(&image, operation, check);
    }
    // In the page domain the Flush is all that there is.
    let needless = Explorer::new(Model::Page).needless_sites(&image, operation, check).unwrap();
    assert!(needless.is_empty(), "{needless:#?}");
}

#[test]
fn a_crash_while_a_disk_is_made_leaves_none_or_a_whole_one() {
    let operation = |run: &Run<u8>| {
        let options = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
        Pool::format_with(Arc::clone(run.pmem()), &options, |pool| write_geometry(pool, geometry())).unwrap();
        run.ack(1);
    };
    let check = |crash: &Crash<u8>| match Pool::attach(Arc::clone(crash.pmem())) {
        Ok(pool) => match read_geometry(&pool) {
            Ok(found) if found == geometry() => Ok(()),
            other => Err(format!("the pool is there, but its disk is {other:?}")),
        },
        Err(PoolError::NotAPool | PoolError::HeadersDamaged { .. }) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(DiskError::from(error).to_string()),
    };
    for model in Model::ALL {
        Explorer::new(model).check(&Image::zeroed(REGION_BYTES), operation, check);
    }
}
