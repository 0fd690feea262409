//! Crashes at every point of a block write, and of making and changing a disk, under every model of the caches.

use fastrand::Rng;
use pm_core::protection::Protected;
use pm_core::{Domain, Pmem, Pool, PoolError, PoolOptions, Uuid};
use pm_crashsim::{
    CheckedWindows, Crash, Explorer, Faults, Image, Lint, Lints, Model, Run, SimPmem, Windowed,
};
use pmbd::disk::{format, read_geometry, write_geometry};
use pmbd::{
    BlockOp, BufferOptions, DiskError, Engine, Geometry, SectorSize, Slots, WriteBackMark, WriteCache,
    WritePolicy, WriteScheme, WriteSetup,
};
use std::ops::Range;
use std::sync::Arc;

const REGION_BYTES: u64 = 1 << 16;
const START: u64 = 12_288;
const CAPACITY: u64 = 32 << 10;
const LINE: u64 = pm_core::line::LINE_BYTES;

fn geometry() -> Geometry {
    Geometry::new(START, CAPACITY, SectorSize::B512).unwrap()
}

fn engine(pmem: &Arc<SimPmem>) -> Engine<Arc<SimPmem>> {
    Engine::new(Arc::clone(pmem), geometry()).unwrap()
}

/// The mark of the device: a word before it.
const MARK: WriteBackMark = WriteBackMark::at(4096);

/// The engine of the next server, which writes by `policy`.
fn engine_with(pmem: &Arc<SimPmem>, policy: WritePolicy) -> Engine<Arc<SimPmem>> {
    engine(pmem).with_policy(policy, Some(MARK)).unwrap()
}

/// The engine of the next server, with a buffer of two blocks. Its slots are in the same memory as the device; the slots of the last server, which is
/// killed, are in the other of two places. After a power failure no server looks for them.
fn buffered(pmem: &Arc<SimPmem>, policy: WritePolicy, is_batched: bool) -> Engine<Arc<SimPmem>> {
    const PLACES: [(u64, u64); 2] = [(REGION_BYTES, 3), (REGION_BYTES + (1 << 15), 5)];
    let marked = pmem.load_u64(4096);
    let (old, new) = if marked == 3 { (PLACES[0], PLACES[1]) } else { (PLACES[1], PLACES[0]) };
    let options = BufferOptions { buffer_bytes: 8192, is_batched, ..BufferOptions::default() };
    let leftover = (marked != 0).then(|| Slots::open(Box::new(Arc::clone(pmem)), old.0).unwrap());
    let slots = Slots::create(Box::new(Arc::clone(pmem)), new.0, options.slot_count(), new.1).unwrap();
    let setup = WriteSetup { policy, mark: Some(MARK), buffers: Some((options, slots)), leftover };
    engine(pmem).with_writes(setup).unwrap()
}

/// Every policy.
fn policies() -> impl Iterator<Item = WritePolicy> {
    let schemes = [WriteScheme::NonTemporal, WriteScheme::WriteBack, WriteScheme::Deferred];
    schemes.into_iter().flat_map(|scheme| {
        [(false, false), (true, false), (false, true), (true, true)]
            .map(|(only_changed, verify)| WritePolicy { scheme, only_changed, verify })
    })
}

/// A device full of nines, for writes of zeroes.
fn nines() -> Image {
    let mut bytes = vec![9; usize::try_from(REGION_BYTES).unwrap()];
    bytes[..usize::try_from(START).unwrap()].fill(0);
    Image::from_bytes(bytes)
}

/// A write in flight leaves each 8-byte word old or new; an acknowledged one leaves only new words.
fn old_or_new(found: &[u8], old: u8, new: u8, acked: bool) -> Result<(), String> {
    for (at, word) in found.chunks(8).enumerate() {
        let is = |byte| word.iter().all(|&b| b == byte);
        if !(is(new) || !acked && is(old)) {
            return Err(format!("word {at} is {word:?}, acknowledged: {acked}"));
        }
    }
    Ok(())
}

/// Bytes before and after a write are unchanged.
fn untouched(found: &[u8], old: u8) -> Result<(), String> {
    old_or_new(found, old, old, true)
}

/// In the page domain a completed write is in the write cache, and need not be durable.
fn lints(model: Model) -> Lints {
    match model {
        Model::Page => Lints::all_denied().allow(Lint::UnfencedStore),
        _ => Lints::all_denied(),
    }
}

/// Explores `operation` under every model, once for each line of `ranges` and for the lines next to them, with a check that reads only that
/// line: `judge` gets its offset and its contents. Every choice is tried.
///
/// The guarantee of a write concerns each word by itself. So it holds in every image that a crash can leave, if it holds for all possible
/// contents of each line. 64 lines in flight have 64 times 2^8 contents, and together 2^512 images.
fn for_each_line(
    image: &Image,
    ranges: &[Range<u64>],
    lints: impl Fn(Model) -> Lints,
    operation: impl Fn(&Run<u8>) + Sync,
    judge: impl Fn(&Crash<u8>, u64, &[u8]) -> Result<(), String> + Sync,
) {
    for model in Model::ALL {
        for range in ranges {
            for offset in (range.start - LINE..range.end + LINE).step_by(64) {
                // Not through the engine, which reads whole sectors.
                let check = |crash: &Crash<u8>| {
                    let mut line = [0; 64];
                    crash.pmem().load(START + offset, &mut line);
                    judge(crash, offset, &line)
                };
                let explorer = Explorer::new(model).kills(1).lints(lints(model));
                let coverage = explorer.check(image, &operation, check);
                assert!(coverage.is_exhaustive(), "{model}, line {offset}: {coverage}");
            }
        }
    }
}

/// A check that reads the ranges as a client does, and judges each of their lines. It sees a sample of the images.
fn through_the_engine(
    ranges: &[Range<u64>],
    judge: impl Fn(&Crash<u8>, u64, &[u8]) -> Result<(), String> + Sync,
) -> impl Fn(&Crash<u8>) -> Result<(), String> + Sync {
    move |crash| {
        let engine = engine(crash.pmem());
        for range in ranges {
            let mut found = vec![0; usize::try_from(range.end - range.start).unwrap()];
            engine.execute(range.start, BlockOp::Read { out: &mut found }).unwrap();
            for (offset, line) in (range.start..).step_by(64).zip(found.chunks(64)) {
                judge(crash, offset, line)?;
            }
        }
        Ok(())
    }
}

/// Deferred writes are stored without a flush, and a Flush that finds none fences all the same. Bytes that are stored already are flushed too.
fn policy_lints(policy: WritePolicy, model: Model) -> Lints {
    let mut lints = lints(model);
    if policy.scheme == WriteScheme::Deferred {
        lints = lints.allow(Lint::UnfencedStore).allow(Lint::UnflushedStore).allow(Lint::RedundantFence);
    }
    if policy.scheme == WriteScheme::Deferred || policy.only_changed {
        lints = lints.allow(Lint::RedundantFlush);
    }
    if model == Model::Page { lints.allow(Lint::UnfencedFlush) } else { lints }
}

/// [`explore`] for every policy. The operation gets its engine, and `judge` whether the device has a write-back cache.
fn explore_policies(
    image: &Image,
    ranges: &[Range<u64>],
    operation: impl Fn(&Run<u8>, &Engine<Arc<SimPmem>>) + Sync,
    judge: impl Fn(&Crash<u8>, WriteCache, u64, &[u8]) -> Result<(), String> + Sync,
) {
    for policy in policies() {
        let is_deferred = policy.scheme == WriteScheme::Deferred;
        let operation = |run: &Run<u8>| operation(run, &engine_with(run.pmem(), policy));
        let lints = |model| policy_lints(policy, model);
        let judge = |crash: &Crash<u8>, offset, line: &[u8]| {
            let is_write_back = is_deferred || crash.pmem().domain() == Domain::Page;
            let cache = if is_write_back { WriteCache::WriteBack } else { WriteCache::WriteThrough };
            judge(crash, cache, offset, line)
        };
        if is_deferred {
            // The write-back on drop is not promised: the mark would tell the next server.
            for_each_line(image, ranges, lints, operation, judge);
        } else {
            explore(image, ranges, lints, operation, judge);
        }
    }
}

/// Explores line by line, and then shows that a test which reads as a client does detects the loss of any flush or fence.
fn explore(
    image: &Image,
    ranges: &[Range<u64>],
    lints: impl Fn(Model) -> Lints,
    operation: impl Fn(&Run<u8>) + Sync,
    judge: impl Fn(&Crash<u8>, u64, &[u8]) -> Result<(), String> + Sync,
) {
    for_each_line(image, ranges, lints, &operation, &judge);
    let explorer = Explorer::new(Model::Px86Line).kills(1).choices_per_point(256);
    let check = through_the_engine(ranges, judge);
    let mut redundant = explorer.redundant_sites(image, &operation, &check).unwrap();
    redundant.retain(|site| site.location.file().contains("/src/"));
    assert!(redundant.is_empty(), "redundant: {redundant:#?}");
}

#[test]
fn completed_4_kib_write_is_durable() {
    let operation = |run: &Run<u8>| {
        let engine = engine(run.pmem());
        for byte in [1, 2] {
            engine.execute(4096, BlockOp::Write { data: &[byte; 4096], fua: true }).unwrap();
            run.ack(byte);
        }
    };
    let judge = |crash: &Crash<u8>, offset, line: &[u8]| {
        let last = crash.acked().last().copied().unwrap_or(0);
        match (offset, last) {
            (4096..8192, 2) => old_or_new(line, 1, 2, true),
            (4096..8192, _) => old_or_new(line, last, last + 1, false),
            _ => untouched(line, 0),
        }
    };
    let written = 4096..8192;
    explore(&Image::zeroed(REGION_BYTES), core::slice::from_ref(&written), lints, operation, judge);
}

#[test]
fn write_without_fua_is_durable_unless_the_cache_is_write_back() {
    let operation = |run: &Run<u8>, engine: &Engine<Arc<SimPmem>>| {
        engine.execute(512, BlockOp::Write { data: &[7; 512], fua: false }).unwrap();
        run.ack(7);
        // To another range, still in flight at the crash: it must not affect the first.
        engine.execute(8192, BlockOp::Write { data: &[8; 512], fua: false }).unwrap();
        run.ack(8);
    };
    let judge = |crash: &Crash<u8>, cache, offset, line: &[u8]| {
        let promised = cache == WriteCache::WriteThrough;
        match offset {
            512..1024 => old_or_new(line, 0, 7, promised && !crash.acked().is_empty()),
            8192..8704 => old_or_new(line, 0, 8, promised && crash.acked().len() == 2),
            _ => untouched(line, 0),
        }
    };
    explore_policies(&Image::zeroed(REGION_BYTES), &[512..1024, 8192..8704], operation, judge);
}

#[test]
fn write_with_fua_is_durable() {
    // The third write changes one line only, and the second leaves lines of its page to no Flush.
    let operation = |run: &Run<u8>, engine: &Engine<Arc<SimPmem>>| {
        for (number, data) in [(1, &[1; 512]), (2, &[2; 512])] {
            engine.execute(512, BlockOp::Write { data, fua: true }).unwrap();
            run.ack(number);
        }
        engine.execute_bytes(520, BlockOp::WriteZeroes { len_bytes: 8, fua: true }).unwrap();
        run.ack(3);
    };
    let judge = |crash: &Crash<u8>, _, offset, line: &[u8]| {
        let acked = crash.acked().last().copied().unwrap_or(0);
        match offset {
            512 if acked >= 2 => {
                old_or_new(&line[8..16], 2, 0, acked == 3)?;
                untouched(&line[..8], 2)?;
                untouched(&line[16..], 2)
            }
            512..1024 => old_or_new(line, acked.min(2), (acked + 1).min(2), acked >= 2),
            _ => untouched(line, 0),
        }
    };
    explore_policies(&Image::zeroed(REGION_BYTES), core::slice::from_ref(&(512..1024)), operation, judge);
}

#[test]
fn completed_zeroes_are_durable() {
    // A discard has no FUA, and is as durable as a write without FUA.
    let operation = |run: &Run<u8>, engine: &Engine<Arc<SimPmem>>| {
        engine.execute(512, BlockOp::WriteZeroes { len_bytes: 512, fua: true }).unwrap();
        run.ack(1);
        engine.execute(8192, BlockOp::Discard { len_bytes: 512 }).unwrap();
        run.ack(2);
    };
    let judge = |crash: &Crash<u8>, cache, offset, line: &[u8]| {
        let acked = crash.acked().len();
        match offset {
            512..1024 => old_or_new(line, 9, 0, acked >= 1),
            8192..8704 => old_or_new(line, 9, 0, cache == WriteCache::WriteThrough && acked == 2),
            _ => untouched(line, 9),
        }
    };
    explore_policies(&nines(), &[512..1024, 8192..8704], operation, judge);
}

#[test]
fn flush_makes_completed_writes_durable_in_every_domain() {
    let operation = |run: &Run<u8>, engine: &Engine<Arc<SimPmem>>| {
        engine.execute(512, BlockOp::Write { data: &[7; 512], fua: false }).unwrap();
        engine.execute(8192, BlockOp::WriteZeroes { len_bytes: 512, fua: false }).unwrap();
        engine.execute(0, BlockOp::Flush).unwrap();
        run.ack(1);
    };
    let judge = |crash: &Crash<u8>, offset, line: &[u8]| {
        let acked = !crash.acked().is_empty();
        match offset {
            512..1024 => old_or_new(line, 9, 7, acked),
            8192..8704 => old_or_new(line, 9, 0, acked),
            _ => untouched(line, 9),
        }
    };
    let (image, ranges) = (nines(), [512..1024, 8192..8704]);
    for policy in policies() {
        let operation = |run: &Run<u8>| operation(run, &engine_with(run.pmem(), policy));
        // In CPU domains a Flush has nothing to wait for, and fences all the same.
        let lints = |model| policy_lints(policy, model).allow(Lint::RedundantFence);
        for_each_line(&image, &ranges, lints, operation, judge);
        // In the page domain, and of deferred writes, only the Flush makes them durable.
        let model = if policy.scheme == WriteScheme::Deferred { Model::Px86Line } else { Model::Page };
        let explorer = Explorer::new(model).kills(1).choices_per_point(256);
        let check = through_the_engine(&ranges, judge);
        let mut redundant = explorer.redundant_sites(&image, operation, check).unwrap();
        // The mark has its own tests.
        redundant.retain(|site| !site.location.file().ends_with("mark.rs"));
        assert!(redundant.is_empty(), "{policy:?}: {redundant:?}");
    }
}

/// What the next server returns is durable, although the last one was killed with its writes in the caches.
#[test]
fn deferred_writes_of_killed_server_are_written_back_by_the_next() {
    let deferred = WritePolicy::from(WriteScheme::Deferred);
    let first = |run: &Run<u8>| {
        let engine = engine_with(run.pmem(), deferred);
        engine.execute(512, BlockOp::Write { data: &[7; 512], fua: false }).unwrap();
    };
    for policy in policies() {
        let second = |run: &Run<u8>| {
            let engine = engine_with(run.pmem(), policy);
            let mut sector = [0; 512];
            engine.execute(512, BlockOp::Read { out: &mut sector }).unwrap();
            sector.chunks(64).for_each(|line| run.ack(line[0]));
        };
        let check = |crash: &Crash<u8>| {
            let mut sector = [0; 512];
            crash.pmem().load(START + 512, &mut sector);
            let is_found = |(acked, line): (&u8, &[u8])| *acked == 0 || line[0] == 7;
            match crash.acked().iter().zip(sector.chunks(64)).all(is_found) {
                true => Ok(()),
                false => Err(format!("{:?} were returned, and then found {sector:?}", crash.acked())),
            }
        };
        let explorer = Explorer::new(Model::Px86Line).crashes(1);
        let coverage = explorer.check_restarted(&Image::zeroed(REGION_BYTES), first, second, check);
        assert!(coverage.kills.tried > 1, "{coverage}");
    }
}

/// The next server need not write back a device whose last server was stopped.
#[test]
fn mark_of_stopped_server_is_cleared_durably() {
    let operation = |run: &Run<u8>| {
        let engine = engine_with(run.pmem(), WriteScheme::Deferred.into());
        engine.execute(512, BlockOp::Write { data: &[7; 512], fua: false }).unwrap();
        drop(engine);
        run.ack(1);
    };
    let check = |crash: &Crash<u8>| match crash.pmem().load_u64(4096) {
        0 => Ok(()),
        mark if crash.acked().is_empty() => untouched(&mark.to_le_bytes(), 0).or(Ok(())),
        mark => Err(format!("the mark is {mark:#x} after the server has stopped")),
    };
    for model in Model::ALL {
        let coverage = Explorer::new(model).kills(1).check(&Image::zeroed(REGION_BYTES), operation, check);
        assert!(coverage.is_exhaustive() || model == Model::Page, "{model}: {coverage}");
    }
}

fn pool_options() -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0)
}

/// A pool in which these geometries were written one after the other.
fn disk_image(geometries: &[Geometry]) -> Image {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let pool = Pool::format(Arc::clone(&sim), &pool_options()).unwrap();
    geometries.iter().for_each(|geometry| write_geometry(&pool, *geometry).unwrap());
    sim.to_image()
}

/// Explores kills and crashes of an operation on a disk, and its crashes under every model.
fn explore_disk(
    image: &Image,
    operation: impl Fn(&Run<u8>) + Sync,
    check: impl Fn(&Crash<u8>) -> Result<(), String> + Sync,
) {
    let killed = Explorer::new(Model::Px86Line).kills(1).crashes(1).check(image, &operation, &check);
    assert!(killed.is_exhaustive(), "{killed}");
    for model in Model::ALL {
        // Where the words of a line are unordered, a header has 2^11 mixtures.
        let explorer = Explorer::new(model).nested_choices_per_point(1 << 11);
        let coverage = explorer.check(image, &operation, &check);
        assert!(coverage.is_exhaustive(), "{model}: {coverage}");
    }
}

#[test]
fn disk_creation_is_atomic() {
    let operation = |run: &Run<u8>| {
        let made = Pool::format_with(Arc::clone(run.pmem()), &pool_options(), |pool| {
            write_geometry(pool, geometry())
        });
        made.unwrap();
        run.ack(1);
    };
    let check = |crash: &Crash<u8>| match Pool::attach(Arc::clone(crash.pmem())) {
        Ok(pool) => match read_geometry(&pool) {
            Ok(found) if found == geometry() => Ok(()),
            other => Err(format!("the pool is there, but its disk is {other:?}")),
        },
        Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(DiskError::from(error).to_string()),
    };
    explore_disk(&Image::zeroed(REGION_BYTES), operation, check);
}

#[test]
fn disk_change_is_atomic() {
    let old = geometry();
    let new = Geometry::new(START, CAPACITY / 2, SectorSize::B4096).unwrap();
    // The second change overwrites the first descriptor.
    for (before, after) in [(vec![old], new), (vec![old, new], old)] {
        let image = disk_image(&before);
        let last = *before.last().unwrap();
        let operation = |run: &Run<u8>| {
            write_geometry(&Pool::attach(Arc::clone(run.pmem())).unwrap(), after).unwrap();
            run.ack(1);
        };
        let check = |crash: &Crash<u8>| {
            let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
            match read_geometry(&pool) {
                Ok(found) if found == after || crash.acked().is_empty() && found == last => Ok(()),
                other => Err(format!("the disk is {other:?}")),
            }
        };
        explore_disk(&image, operation, check);
    }
}

/// The next server reports the disk that it finds to its clients, and serves it.
#[test]
fn disk_found_by_next_server_is_durable() {
    let old = geometry();
    let new = Geometry::new(START, CAPACITY / 2, SectorSize::B4096).unwrap();
    let image = disk_image(&[old]);
    let found = |pmem: &Arc<SimPmem>| read_geometry(&Pool::attach(Arc::clone(pmem)).unwrap()).unwrap();
    let first = |run: &Run<u64>| write_geometry(&Pool::attach(Arc::clone(run.pmem())).unwrap(), new).unwrap();
    let second = |run: &Run<u64>| {
        let geometry = found(run.pmem());
        let engine = Engine::new(Arc::clone(run.pmem()), geometry).unwrap();
        engine.execute(0, BlockOp::Write { data: &[7; 4096], fua: true }).unwrap();
        run.ack(geometry.capacity_bytes());
    };
    let check = |crash: &Crash<u64>| {
        let geometry = found(crash.pmem());
        match crash.acked().last() {
            Some(capacity) if *capacity != geometry.capacity_bytes() => {
                Err(format!("{geometry:?} after {capacity}"))
            }
            Some(_) => {
                let mut sector = [0; 4096];
                engine(crash.pmem()).execute(0, BlockOp::Read { out: &mut sector }).unwrap();
                old_or_new(&sector, 0, 7, true)
            }
            None => Ok(()),
        }
    };
    let coverage = Explorer::new(Model::Px86Line).crashes(1).check_restarted(&image, first, second, check);
    assert!(coverage.kills.tried > 1, "{coverage}");
}

fn small_geometry(sectors: u64) -> Geometry {
    Geometry::new(format::SMALL_START, sectors * 512, SectorSize::B512).unwrap()
}

fn change_geometry(run: &Run<u64>, sectors: u64) {
    let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
    write_geometry(&pool, small_geometry(sectors)).unwrap();
    run.ack(sectors);
}

/// A kill between two changes of the geometry, and crashes; also with one line of the descriptors lost.
#[test]
fn last_acknowledged_geometry_survives_kills_and_crashes() {
    let image = disk_image(&[small_geometry(1)]);
    let check = |crash: &Crash<u64>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        let found = match read_geometry(&pool) {
            Ok(geometry) => geometry.capacity_bytes() / 512,
            Err(_) if !crash.faults().is_empty() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let last = crash.acked().last().copied().unwrap_or(1);
        if found >= last && found <= 4 { Ok(()) } else { Err(format!("{found} after {:?}", crash.acked())) }
    };
    let explorer = |faults: Faults| {
        Explorer::new(Model::Px86Line)
            .crashes(1)
            .kills(1)
            .choices_per_point(1 << 10)
            .faults(faults)
            .recoveries(100_000)
    };
    for faults in [Faults::none(), Faults::none().poison(1).within(8192..8192 + 128)] {
        let first = |run: &Run<u64>| {
            change_geometry(run, 2);
            change_geometry(run, 3);
        };
        let coverage =
            explorer(faults).check_restarted(&image, first, |run: &Run<u64>| change_geometry(run, 4), check);
        println!("{coverage}");
    }
}

/// A write that a killed server has not acknowledged may be lost after the next server has returned it. Once it is written again, as the
/// ublk driver does in a takeover, it is durable.
#[test]
fn write_of_killed_server_is_durable_once_repeated() {
    let write = |run: &Run<u8>| {
        let request = BlockOp::Write { data: &[9; 3], fua: false };
        engine(run.pmem()).execute_bytes(3, request).unwrap();
    };
    let second = |run: &Run<u8>| {
        write(run);
        let mut shown = [0; 3];
        engine(run.pmem()).execute_bytes(3, BlockOp::Read { out: &mut shown }).unwrap();
        assert_eq!(shown, [9; 3]);
        run.ack(9);
    };
    let check = |crash: &Crash<u8>| {
        let mut found = [0; 3];
        crash.pmem().load(START + 3, &mut found);
        match crash.acked() {
            [9] if found != [9; 3] => Err(format!("{found:?} was found after nines were read")),
            _ => Ok(()),
        }
    };
    let explorer = Explorer::new(Model::Px86Line).crashes(1);
    let coverage = explorer.check_restarted(&Image::zeroed(REGION_BYTES), write, second, check);
    assert!(coverage.kills.tried > 1, "{coverage}");
}

/// A request of a random sequence.
#[derive(Clone, Debug)]
enum Request {
    Write { offset: u64, data: Vec<u8>, fua: bool },
    Zero { offset: u64, len: u64, fua: bool },
    Discard { offset: u64, len: u64 },
    Flush,
}

/// The part of the device that random requests fall into: few lines, so that they overlap.
const BUSY_BYTES: usize = 192;

impl Request {
    /// A request; a write writes the byte `value`.
    fn random(random: &mut Rng, value: u8) -> Self {
        // Half of the requests have whole words.
        let granule = if random.bool() { 8 } else { 1 };
        let offset = random.u64(..BUSY_BYTES as u64 / granule) * granule;
        let len = ((1 + random.u64(..80 / granule)) * granule).min(BUSY_BYTES as u64 - offset);
        let fua = random.u8(..3) == 0;
        match random.u8(..64) % 9 {
            // The whole device, which passes a buffer. Rarely, because it has many crash points.
            8 if random.u8(..4) == 0 => {
                Self::Write { offset: 0, data: vec![value; usize::try_from(CAPACITY).unwrap()], fua }
            }
            0..4 | 8 => Self::Write { offset, data: vec![value; usize::try_from(len).unwrap()], fua },
            4 => Self::Zero { offset, len, fua },
            5 => Self::Discard { offset, len },
            _ => Self::Flush,
        }
    }

    fn execute(&self, engine: &Engine<impl Pmem>) {
        let (offset, op) = match self {
            Self::Write { offset, data, fua } => (*offset, BlockOp::Write { data, fua: *fua }),
            Self::Zero { offset, len, fua } => (*offset, BlockOp::WriteZeroes { len_bytes: *len, fua: *fua }),
            Self::Discard { offset, len } => (*offset, BlockOp::Discard { len_bytes: *len }),
            Self::Flush => (0, BlockOp::Flush),
        };
        engine.execute_bytes(offset, op).unwrap();
    }

    /// The range and byte that it writes.
    fn change(&self) -> Option<(Range<usize>, u8)> {
        let range = |offset: u64, len: u64| {
            let start = usize::try_from(offset).unwrap();
            start..(start + usize::try_from(len).unwrap()).min(BUSY_BYTES)
        };
        match self {
            Self::Write { offset, data, .. } => Some((range(*offset, data.len() as u64), data[0])),
            Self::Zero { offset, len, .. } | Self::Discard { offset, len } => Some((range(*offset, *len), 0)),
            Self::Flush => None,
        }
    }

    /// Whether its reply means, on a device with a write cache, that every earlier write is durable.
    fn flushes(&self) -> bool {
        matches!(self, Self::Flush | Self::Write { fua: true, .. } | Self::Zero { fua: true, .. })
    }
}

/// The values that each byte of the device may have after a crash.
struct Allowed {
    /// Oldest first; a client reads the last.
    bytes: Vec<Vec<u8>>,
    write_back: bool,
    is_deferred: bool,
}

impl Allowed {
    fn new(is_deferred: bool, is_buffered: bool, domain: Domain) -> Self {
        let write_back = is_deferred || is_buffered || domain == Domain::Page;
        Self { bytes: vec![vec![0]; BUSY_BYTES], write_back, is_deferred }
    }

    fn run(&mut self, request: &Request, is_acked: bool) {
        if let Some((range, value)) = request.change() {
            self.bytes[range].iter_mut().for_each(|byte| byte.push(value));
        }
        if is_acked && (request.flushes() || !self.write_back) {
            // FUA concerns its own bytes; the fence of the page domain, all.
            let range = request.change().map(|(range, _)| range).filter(|_| self.is_deferred);
            let durable = &mut self.bytes[range.unwrap_or(0..BUSY_BYTES)];
            durable.iter_mut().for_each(|byte| drop(byte.drain(..byte.len() - 1)));
        }
    }

    fn check(&self, found: &[u8]) -> Result<(), String> {
        match found.iter().zip(&self.bytes).position(|(found, allowed)| !allowed.contains(found)) {
            Some(at) => Err(format!("byte {at} is {}, and may be one of {:?}", found[at], self.bytes[at])),
            None => Ok(()),
        }
    }
}

/// Sequences of two to five requests at any byte, by every policy, protected, buffered, or neither. The server is killed at any point, the next one runs the request in flight again,
/// continues with the others, and the power fails at any point. `PM_CRASH_SEQUENCES` is their number, by default 150; `PM_CRASH_FIRST` is
/// the seed of the first, to share a long campaign between processes.
#[test]
fn acknowledged_requests_survive_kills_takeovers_and_crashes() {
    let number = |name, default| std::env::var(name).map_or(default, |number| number.parse::<u64>().unwrap());
    let (first, count) = (number("PM_CRASH_FIRST", 0), number("PM_CRASH_SEQUENCES", 150));
    let mut recoveries = 0;
    for seed in first..first + count {
        let mut random = Rng::with_seed(seed);
        let model = Model::ALL[usize::try_from(seed % 5).unwrap()];
        let policy = policies().nth(random.usize(..12)).unwrap();
        let requests: Vec<Request> =
            (1..=2 + random.u8(..4)).map(|value| Request::random(&mut random, value)).collect();
        // Each server starts with the first request that was not acknowledged.
        let (is_protected, is_buffered) = (random.bool(), random.bool());
        let policy =
            if is_buffered { WritePolicy { scheme: WriteScheme::NonTemporal, ..policy } } else { policy };
        let is_batched = random.bool();
        let serve = |run: &Run<()>| {
            let serve = |execute: &dyn Fn(&Request)| {
                for request in &requests[run.acked().len()..] {
                    execute(request);
                    run.ack(());
                }
            };
            if is_buffered {
                let engine = buffered(run.pmem(), policy, is_batched);
                serve(&|request| request.execute(&engine));
            } else if is_protected {
                let pmem = CheckedWindows::new(Arc::clone(run.pmem()));
                let pmem = Protected::with_windows(pmem, Windowed);
                let engine = Engine::new(pmem, geometry()).unwrap().with_policy(policy, Some(MARK)).unwrap();
                serve(&|request| request.execute(&engine));
            } else {
                let engine = engine_with(run.pmem(), policy);
                serve(&|request| request.execute(&engine));
            }
        };
        let check = |crash: &Crash<()>| {
            let is_deferred = policy.scheme == WriteScheme::Deferred;
            let mut allowed = Allowed::new(is_deferred, is_buffered, crash.pmem().domain());
            let acked = crash.acked().len();
            for (index, request) in requests.iter().enumerate().take(acked + 1) {
                allowed.run(request, index < acked);
            }
            let mut found = [0; BUSY_BYTES];
            engine(crash.pmem()).execute_bytes(0, BlockOp::Read { out: &mut found }).unwrap();
            allowed.check(&found)
        };
        let explorer = Explorer::new(model).seed(seed).kills(1).crashes(1).choices_per_point(4);
        let coverage = explorer
            .explore_restarted(&Image::zeroed(2 * REGION_BYTES), serve, serve, check)
            .unwrap_or_else(|failure| {
                panic!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: {policy:?}, buffered: {is_buffered}, {requests:.99?}: {failure}")
            });
        recoveries += coverage.recoveries();
    }
    println!("{count} sequences from {first}, {recoveries} recoveries");
}
