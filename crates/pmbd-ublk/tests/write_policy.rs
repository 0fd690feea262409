//! Write policies: their costs in lines and fences, what they store, and their failures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Counting, Counts, FenceError, LineCounting, Pmem, Region, RegionOptions, forward_pmem};
use pmbd::{
    BlockError, BlockOp, Engine, Geometry, SectorSize, WriteBackMark, WriteCache, WritePolicy, WriteScheme,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

const START: u64 = 8192;
const CAPACITY: u64 = 1 << 18;
const MARK: WriteBackMark = WriteBackMark::at(4096);
const DEFERRED: WritePolicy =
    WritePolicy { scheme: WriteScheme::Deferred, only_changed: false, verify: false };

fn engine_over<P: Pmem>(pmem: P, policy: WritePolicy) -> Engine<P> {
    let geometry = Geometry::new(START, CAPACITY, SectorSize::B512).unwrap();
    Engine::new(pmem, geometry).unwrap().with_policy(policy, Some(MARK)).unwrap()
}

fn region() -> Region {
    Region::anonymous(START + CAPACITY + 8192).unwrap()
}

fn policies() -> impl Iterator<Item = WritePolicy> {
    let schemes = [WriteScheme::NonTemporal, WriteScheme::WriteBack, WriteScheme::Deferred];
    schemes.into_iter().flat_map(|scheme| {
        [(false, false), (true, false), (false, true), (true, true)]
            .map(|(only_changed, verify)| WritePolicy { scheme, only_changed, verify })
    })
}

#[test]
fn costs_in_lines_and_fences() {
    for policy in policies() {
        let engine = engine_over(Counting::new(region()), policy);
        let cost = |offset, op| {
            let (result, counts) = engine.pmem().count(|| engine.execute(offset, op));
            assert_eq!(result, Ok(()));
            counts
        };
        let (none, page) = (Counts::default(), Counts { lines: 64, fences: 1 });
        let data = &[1; 4096];
        let is_deferred = policy.scheme == WriteScheme::Deferred;
        let expected_cache = if is_deferred { WriteCache::WriteBack } else { WriteCache::WriteThrough };
        assert_eq!(engine.write_cache(), expected_cache);
        let written = if is_deferred { none } else { page };
        assert_eq!(cost(4096, BlockOp::Write { data, fua: false }), written, "{policy:?}");
        // Equal bytes are flushed too: a killed server may have left them in the caches.
        assert_eq!(cost(4096, BlockOp::Write { data, fua: false }), written, "{policy:?}");
        assert_eq!(cost(8192, BlockOp::Write { data, fua: true }), page, "{policy:?}");
        // The page of the write with FUA is flushed again, because its other lines may be dirty.
        let flushed = Counts { lines: if is_deferred { 128 } else { 0 }, fences: 1 };
        assert_eq!(cost(0, BlockOp::Flush), flushed, "{policy:?}");
        assert_eq!(cost(0, BlockOp::Flush), Counts { lines: 0, fences: 1 }, "{policy:?}");
    }
}

#[test]
fn only_changed_lines_are_stored() {
    for policy in policies().filter(|policy| policy.only_changed) {
        let engine = engine_over(LineCounting::new(region()), policy);
        let mut data = vec![1; 8192];
        engine.execute(4096, BlockOp::Write { data: &data, fua: true }).unwrap();
        engine.pmem().reset();
        data[64] = 2;
        data[4096 + 63] = 2;
        engine.execute(4096, BlockOp::Write { data: &data, fua: true }).unwrap();
        let stored = engine.pmem().stored();
        assert_eq!(stored.total_writes(), 2, "{policy:?}");
        let lines = [START + 4096 + 64, START + 8192];
        assert_eq!(lines.map(|line| stored.writes_to(line)), [1, 1], "{policy:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every policy leaves the same bytes: on the device, around it, and after the engine is dropped.
    #[test]
    fn policies_store_the_same_bytes(
        requests in prop::collection::vec((0..CAPACITY, 0_u64..10_000, 0_u8..4, any::<bool>()), 1..12),
    ) {
        for policy in policies() {
            let pmem = std::sync::Arc::new(region());
            let engine = engine_over(std::sync::Arc::clone(&pmem), policy);
            let mut model = vec![0; usize::try_from(CAPACITY).unwrap()];
            for &(offset, len, value, fua) in &requests {
                let len_bytes = len.min(CAPACITY - offset);
                let data = vec![value; usize::try_from(len_bytes).unwrap()];
                let op = match value {
                    0 => BlockOp::WriteZeroes { len_bytes, fua },
                    _ => BlockOp::Write { data: &data, fua },
                };
                engine.execute_bytes(offset, op).unwrap();
                let start = usize::try_from(offset).unwrap();
                model[start..start + data.len()].copy_from_slice(&data);
            }
            drop(engine);
            let mut bytes = vec![1; usize::try_from(pmem.len_bytes()).unwrap()];
            pmem.load(0, &mut bytes);
            let (before, rest) = bytes.split_at(usize::try_from(START).unwrap());
            let (device, after) = rest.split_at(model.len());
            prop_assert!(device == model, "{:?}", policy);
            prop_assert!(before.iter().chain(after).all(|&byte| byte == 0), "{:?}: the mark is cleared", policy);
        }
    }
}

/// Loses stores of the device while `is_broken`.
struct Lossy {
    region: Region,
    is_broken: AtomicBool,
}

impl Pmem for Lossy {
    forward_pmem!(|this| this.region => len_bytes, domain, load, load_u64, store_u64, store_u128, compare_exchange_u64, flush);

    fn store(&self, offset: u64, bytes: &[u8]) {
        if !self.is_broken.load(Ordering::Relaxed) {
            self.region.store(offset, bytes);
        }
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.store(offset, bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.region.fence()
    }
}

#[test]
fn lost_store_is_found_if_writes_are_verified() {
    for policy in policies() {
        let pmem = Lossy { region: region(), is_broken: AtomicBool::new(false) };
        let engine = engine_over(pmem, policy);
        let write = |value: u8| engine.execute(512, BlockOp::Write { data: &[value; 8192], fua: true });
        assert_eq!(write(1), Ok(()));
        engine.pmem().is_broken.store(true, Ordering::Relaxed);
        let expected = match policy.verify {
            true => Err(BlockError::Mismatch { offset_bytes: 512, len_bytes: 8192 }),
            false => Ok(()),
        };
        assert_eq!(write(2), expected, "{policy:?}");
    }
}

/// Writers of the same sectors do not find each other's bytes in place of their own.
#[test]
fn verified_writes_to_one_range_do_not_fail() {
    for policy in policies().filter(|policy| policy.verify) {
        let engine = engine_over(region(), policy);
        std::thread::scope(|threads| {
            for value in 1..=3_u8 {
                let engine = &engine;
                threads.spawn(move || {
                    for _ in 0..2000 {
                        engine.execute(3584, BlockOp::Write { data: &[value; 1024], fua: false }).unwrap();
                    }
                });
            }
        });
    }
}

/// A page that cannot be written back fails every Flush until it can; the other pages are written back.
#[test]
fn inaccessible_page_remains_to_be_written_back() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file");
    let file_bytes = START + CAPACITY + 8192;
    let region = RegionOptions::new().create(&path, file_bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let engine = engine_over(Counting::new(region), DEFERRED);
    let write = |offset| engine.execute(offset, BlockOp::Write { data: &[1; 4096], fua: false });
    [0, 4096, 8192].into_iter().for_each(|offset| write(offset).unwrap());
    let flush = || engine.pmem().count(|| engine.execute(0, BlockOp::Flush));
    file.set_len(START + 8192).unwrap();
    assert!(matches!(write(8192), Err(BlockError::Fault { offset_bytes: 8192, .. })));
    for lines in [128, 0] {
        let (flushed, counts) = flush();
        assert!(matches!(flushed, Err(BlockError::Fault { offset_bytes: 8192, len_bytes: 4096, .. })));
        assert_eq!(counts, Counts { lines, fences: 1 });
    }
    file.set_len(file_bytes).unwrap();
    assert_eq!(flush(), (Ok(()), Counts { lines: 64, fences: 1 }));
}
