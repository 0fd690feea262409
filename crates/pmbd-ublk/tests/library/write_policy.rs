//! Write policies: their costs in lines and fences, what they store, and their failures.

use core::ops::Range;
use pm_core::protection::{Method, Protected, Protection};
use pm_core::{Counting, Counts, Domain, FenceError, LineCounting, Pmem, Region, RegionOptions};
use pm_testkit::{Hook, Hooked};
use pmbd::{
    BlockError, BlockOp, BufferError, BufferOptions, Engine, Geometry, SectorSize, Slots, WriteBackError,
    WriteBackMark, WriteCache, WritePolicy, WriteScheme, WriteSetup,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

/// Buffers of several shapes, most of them small, so that they overflow.
fn shapes() -> impl Iterator<Item = BufferOptions> {
    let shape = |buffer_kib: u64, buffer_count, stride_kib: u64, is_batched| BufferOptions {
        buffer_bytes: buffer_kib << 10,
        buffer_count,
        stride_bytes: stride_kib << 10,
        is_batched,
    };
    [shape(16, 1, 256, true), shape(4, 3, 4, false), shape(32, 2, 8, true), shape(512, 1, 64, false)]
        .into_iter()
}

fn buffered<P: Pmem>(pmem: P, options: BufferOptions) -> Engine<P> {
    let slots = Region::anonymous(Slots::len_bytes(options.slot_count())).unwrap();
    let slots = Slots::create(Box::new(slots), 0, options.slot_count(), 7).unwrap();
    let geometry = Geometry::new(START, CAPACITY, SectorSize::B512).unwrap();
    let setup = WriteSetup { mark: Some(MARK), buffers: Some((options, slots)), ..WriteSetup::default() };
    Engine::new(pmem, geometry).unwrap().with_writes(setup).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Reads find the newest bytes, wherever they are; after the engine is dropped, they are on the device.
    #[test]
    fn buffers_hold_the_newest_bytes(
        requests in prop::collection::vec(
            prop_oneof![
                3 => (0..CAPACITY, 0_u64..20_000, 0_u8..5, any::<bool>()),
                // Long enough to pass the buffers.
                1 => (0..CAPACITY / 4096, 0_u64..30, 0_u8..5, any::<bool>())
                    .prop_map(|(block, blocks, value, fua)| (block * 4096, blocks * 4096, value, fua)),
            ],
            1..24,
        ),
    ) {
        for shape in shapes() {
            let pmem = std::sync::Arc::new(region());
            let engine = buffered(std::sync::Arc::clone(&pmem), shape);
            let mut model = vec![0; usize::try_from(CAPACITY).unwrap()];
            for &(offset, len, value, fua) in &requests {
                let len_bytes = len.min(CAPACITY - offset);
                let start = usize::try_from(offset).unwrap();
                let mut data = vec![value; usize::try_from(len_bytes).unwrap()];
                let op = match value {
                    0 => BlockOp::WriteZeroes { len_bytes, fua },
                    4 => BlockOp::Read { out: &mut data },
                    _ => BlockOp::Write { data: &data, fua },
                };
                engine.execute_bytes(offset, op).unwrap();
                let of_model = &mut model[start..start + data.len()];
                match value {
                    4 => prop_assert!(data == of_model, "{:?}: read of {} at {}", shape, len_bytes, offset),
                    _ => of_model.copy_from_slice(&data),
                }
            }
            prop_assert_eq!(engine.write_cache(), WriteCache::WriteBack);
            drop(engine);
            let mut device = vec![1; model.len()];
            pmem.load(START, &mut device);
            prop_assert!(device == model, "{:?}", shape);
            prop_assert_eq!(pmem.load_u64(4096), 0);
        }
    }
}

#[test]
fn adjacent_blocks_are_stored_in_batches() {
    for (is_batched, is_sequential) in [(true, true), (true, false), (false, true)] {
        let options = BufferOptions { buffer_bytes: 1 << 20, is_batched, ..BufferOptions::default() };
        let engine = buffered(Hooked::new(region(), Calls::default()), options);
        for number in 0..64_u64 {
            // Backwards, if they arrive in another order.
            let block = if is_sequential { number } else { 63 - number };
            engine.execute(block * 4096, BlockOp::Write { data: &[1; 4096], fua: false }).unwrap();
        }
        assert_eq!(engine.pmem().hook.0.load(Ordering::Relaxed), 0);
        engine.execute(0, BlockOp::Flush).unwrap();
        assert_eq!(engine.pmem().hook.0.load(Ordering::Relaxed), if is_batched { 1 } else { 64 });
    }
}

/// Counts the stores around the cache.
#[derive(Debug, Default)]
struct Calls(AtomicU64);

impl Hook<Region> for Calls {
    fn before_store_nt(&self, _: Range<u64>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Readers and writers of the same blocks: each read finds one write, and none that is older than a read before it found.
#[test]
fn readers_of_buffers_never_go_back() {
    for shape in shapes() {
        let engine = buffered(region(), shape);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                for round in 1..=1500_u64 {
                    for sector in 0..4 {
                        let data = round.to_le_bytes().repeat(64);
                        engine
                            .execute(sector * 5120, BlockOp::Write { data: &data, fua: round % 50 == 0 })
                            .unwrap();
                    }
                }
            });
            for _ in 0..2 {
                threads.spawn(|| {
                    let mut newest = [0; 4];
                    while newest != [1500; 4] {
                        for (sector, newest) in (0..).zip(&mut newest) {
                            let mut data = [0; 512];
                            engine.execute(sector * 5120, BlockOp::Read { out: &mut data }).unwrap();
                            let round = u64::from_le_bytes(data[..8].try_into().unwrap());
                            assert!(round >= *newest, "{shape:?}: {round} after {newest}");
                            *newest = round;
                        }
                    }
                });
            }
            writer.join().unwrap();
        });
    }
}

/// A block that cannot be stored stays in its buffer, is read from there, and fails every Flush until it can be stored.
#[test]
fn inaccessible_block_stays_in_its_buffer() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file");
    let file_bytes = START + CAPACITY + 8192;
    let region = RegionOptions::new().create(&path, file_bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let engine = buffered(region, BufferOptions { buffer_bytes: 32 << 10, ..BufferOptions::default() });
    let write = |offset| engine.execute(offset, BlockOp::Write { data: &[1; 4096], fua: false });
    [0, 4096, 8192].into_iter().for_each(|offset| write(offset).unwrap());
    file.set_len(START + 8192).unwrap();
    let fault = |result| matches!(result, Err(BlockError::Fault { offset_bytes: 8192, len_bytes: 4096, .. }));
    assert!(fault(engine.execute(0, BlockOp::Flush)) && fault(engine.execute(0, BlockOp::Flush)));
    let mut block = [0; 4096];
    engine.execute(8192, BlockOp::Read { out: &mut block }).unwrap();
    assert_eq!(block, [1; 4096]);
    // The other blocks still fit.
    (0..40).for_each(|number| write(number % 2 * 4096).unwrap());
    file.set_len(file_bytes).unwrap();
    assert_eq!(engine.execute(0, BlockOp::Flush), Ok(()));
    engine.pmem().load(START + 8192, &mut block);
    assert_eq!(block, [1; 4096]);
}

#[test]
fn corrupted_slots_are_refused() {
    let options = BufferOptions { buffer_bytes: 16 << 10, ..BufferOptions::default() };
    let memory = std::sync::Arc::new(Region::anonymous(Slots::len_bytes(options.slot_count())).unwrap());
    let open = || Slots::open(Box::new(std::sync::Arc::clone(&memory)), 0);
    assert!(matches!(open(), Err(BufferError::NoSlots)));
    let slots = Slots::create(Box::new(std::sync::Arc::clone(&memory)), 0, options.slot_count(), 7).unwrap();
    let geometry = Geometry::new(START, CAPACITY, SectorSize::B512).unwrap();
    let setup = WriteSetup { mark: Some(MARK), buffers: Some((options, slots)), ..WriteSetup::default() };
    let device = std::sync::Arc::new(region());
    let engine = Engine::new(std::sync::Arc::clone(&device), geometry).unwrap().with_writes(setup).unwrap();
    engine.execute(4096, BlockOp::Write { data: &[1; 4096], fua: false }).unwrap();
    core::mem::forget(engine);
    // Any flipped bit of the head but those of the block's number, which are checked too, and of the data.
    let data = Slots::len_bytes(options.slot_count()) - (16 << 10);
    let replay = || {
        let setup = WriteSetup { mark: Some(MARK), leftover: Some(open().unwrap()), ..WriteSetup::default() };
        Engine::new(std::sync::Arc::clone(&device), geometry).unwrap().with_writes(setup)
    };
    for offset in (64..88).chain(data..data + 4096).step_by(3) {
        let mut byte = [0];
        memory.load(offset, &mut byte);
        memory.store(offset, &[byte[0] ^ 4]);
        assert!(matches!(replay(), Err(WriteBackError::Buffer(_))), "byte {offset}");
        memory.store(offset, &byte);
    }
    assert_eq!(device.load_u64(START + 4096), 0);
    assert_eq!(device.load_u64(4096), 7, "the mark stays");
    drop(replay().unwrap());
    assert_eq!((device.load_u64(START + 4096), device.load_u64(4096)), (0x0101_0101_0101_0101, 0));
}

/// Loses stores of the device while this is set.
#[derive(Debug, Default)]
struct Lossy(AtomicBool);

impl Hook<Region> for Lossy {
    fn keeps_store(&self, _: Range<u64>) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn lost_store_is_found_if_writes_are_verified() {
    for policy in policies() {
        let pmem = Hooked::new(region(), Lossy::default());
        let engine = engine_over(pmem, policy);
        let write = |value: u8| engine.execute(512, BlockOp::Write { data: &[value; 8192], fua: true });
        assert_eq!(write(1), Ok(()));
        engine.pmem().hook.0.store(true, Ordering::Relaxed);
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

/// Counts fences, in a domain.
struct Fences(Domain, AtomicU64);

impl<R: Pmem> Hook<R> for Fences {
    fn domain(&self, _: &R) -> Domain {
        self.0
    }

    fn fence(&self, region: &R) -> Result<(), FenceError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        region.fence()
    }
}

/// A write that passes the buffer waits for a system call no more than one that is buffered: Flush does.
#[test]
fn writes_past_the_buffer_are_fenced_by_flush_where_a_fence_is_a_system_call() {
    let shape = BufferOptions { buffer_bytes: 64 << 10, ..BufferOptions::default() };
    for (domain, expected) in [(Domain::Page, 0), (Domain::Adr, 4)] {
        let engine = buffered(Hooked::new(region(), Fences(domain, AtomicU64::new(0))), shape);
        let fences = || engine.pmem().hook.1.load(Ordering::Relaxed);
        let before = fences();
        for block in 0..4 {
            let data = &[7; 32 << 10];
            engine.execute(block * (32 << 10), BlockOp::Write { data, fua: false }).unwrap();
        }
        assert_eq!(fences() - before, expected, "{domain}");
        engine.execute(0, BlockOp::Flush).unwrap();
        assert!(fences() - before > expected, "{domain}");
        let mut found = vec![0; 128 << 10];
        engine.execute(0, BlockOp::Read { out: &mut found }).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
    }
}

/// A window of a protected device serves many pages of zeroes.
#[test]
fn zeroing_opens_few_windows() {
    let protected = Protected::new(region(), &Protection::new(Method::PageTable)).unwrap();
    let engine = engine_over(protected, WritePolicy::default());
    let changes = || engine.pmem().windows().change_count();
    for op in
        [BlockOp::Discard { len_bytes: CAPACITY }, BlockOp::WriteZeroes { len_bytes: CAPACITY, fua: true }]
    {
        engine.execute(0, BlockOp::Write { data: &[7; 4096], fua: false }).unwrap();
        let before = changes();
        engine.execute(0, op).unwrap();
        assert!(changes() - before <= 2 * CAPACITY.div_ceil(64 << 10), "{}", changes() - before);
        let mut found = [1; 4096];
        engine.execute(0, BlockOp::Read { out: &mut found }).unwrap();
        assert_eq!(found, [0; 4096]);
    }
}
