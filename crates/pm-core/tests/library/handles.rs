//! Several handles of one region: writing handles exclude each other, and reading handles may exist beside a writing one.

use crate::pools::{LONGER_BYTES, POOL_BYTES, get, set_at};
use pm_core::{FenceError, HeaderState, Pmem, Pool, PoolOptions, Region, Uuid, WriterGuard, forward_pmem};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const ROOTS: Range<u64> = 4096..8192;

type Other<'r> = Box<dyn FnOnce() + Send + 'r>;
type Look<'r> = Box<dyn Fn() + Send + Sync + 'r>;

/// A region that runs another thread, or a check, before a given access.
struct Seen<'r> {
    region: &'r Region,
    /// Runs before the writer's lock is acquired.
    before_lock: Mutex<Option<Other<'r>>>,
    /// The number of a load of a word of the directory, counted down, and the closure that runs before that load.
    at_load: Mutex<Option<(u64, Other<'r>)>>,
    /// Runs before each store of a word, and before each fence.
    before_stores: Option<Look<'r>>,
    /// The number of fences that succeed; all later ones fail.
    fences_left: AtomicU64,
}

impl<'r> Seen<'r> {
    fn new(region: &'r Region) -> Self {
        Self {
            region,
            before_lock: Mutex::new(None),
            at_load: Mutex::new(None),
            before_stores: None,
            fences_left: AtomicU64::new(u64::MAX),
        }
    }
}

impl Pmem for Seen<'_> {
    forward_pmem!(|this| this.region => len_bytes, domain, writer_lock, store, store_nt, load_u64, store_u128);
    forward_pmem!(|this| this.region => compare_exchange_u64, flush);

    fn lock_writer(&self) -> Option<WriterGuard> {
        if let Some(other) = self.before_lock.lock().unwrap().take() {
            std::thread::scope(|threads| threads.spawn(other).join().unwrap());
        }
        self.region.lock_writer()
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        for (at, word) in (offset..).step_by(8).zip(out.chunks_mut(8)) {
            if ROOTS.contains(&at) {
                let mut other = self.at_load.lock().unwrap();
                match other.take() {
                    Some((0, other)) => std::thread::scope(|threads| threads.spawn(other).join().unwrap()),
                    Some((left, run)) => *other = Some((left - 1, run)),
                    None => {}
                }
            }
            self.region.load(at, word);
        }
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.before_stores.iter().for_each(|look| look());
        self.region.store_u64(offset, value);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.before_stores.iter().for_each(|look| look());
        match self.fences_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => self.region.fence(),
            Err(_) => Err(FenceError::Poisoned),
        }
    }
}

/// A pool in a region that is longer than the pool, as after an interrupted growth.
fn longer_region() -> Region {
    let short = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &PoolOptions::new()).unwrap();
    let mut bytes = vec![0; usize::try_from(POOL_BYTES).unwrap()];
    short.pmem().load(0, &mut bytes);
    let region = Region::anonymous(LONGER_BYTES).unwrap();
    region.store(0, &bytes);
    region
}

/// While one thread opens the pool, another thread opens it, extends it, stores into its new data, and closes it.
#[test]
fn writer_uses_header_of_previous_writer() {
    let region = longer_region();
    let seen = Seen::new(&region);
    let at = POOL_BYTES - 4096;
    *seen.before_lock.lock().unwrap() = Some(Box::new(|| {
        let mut first = Pool::attach(&region).unwrap();
        first.extend().unwrap();
        set_at(&first, "counter", at, 7);
        assert_eq!((first.pool_bytes(), get(&first, "counter")), (LONGER_BYTES, Some(7)));
    }));
    let mut second = Pool::attach(seen).unwrap();
    let known_bytes = second.pool_bytes();
    second.extend().unwrap();
    drop(second);
    let third = Pool::attach(&region).unwrap();
    assert_eq!(get(&third, "counter"), Some(7), "the handle assumed {known_bytes} bytes");
}

/// While one thread opens the pool, another thread formats a new pool over it.
#[test]
fn writer_opens_pool_formatted_by_previous_writer() {
    let region = longer_region();
    let seen = Seen::new(&region);
    let options = PoolOptions::new().uuid(Uuid::from_bytes([9; 16])).overwrite().with_logged_roots();
    *seen.before_lock.lock().unwrap() = Some(Box::new(|| {
        let first = Pool::format(&region, &options).unwrap();
        assert!(first.has_logged_roots());
    }));
    let second = Pool::attach(seen).unwrap();
    let (uuid, is_logged) = (second.uuid(), second.has_logged_roots());
    assert_eq!((uuid, is_logged), (Uuid::from_bytes([9; 16]), true), "the handle has the new pool");
}

/// Checks that a reading handle finds `y`. In each iteration, `change` runs once, before a different load of a word of the directory.
fn find_during(change: impl Fn(&Region) + Sync) {
    for load in 0..64 * 8 {
        let region = Region::anonymous(POOL_BYTES).unwrap();
        let writer = Pool::format(&region, &PoolOptions::new()).unwrap();
        let start = writer.data().start;
        // The root is in the second slot, so that the next root is stored in the first.
        set_at(&writer, "y", start, 1);
        set_at(&writer, "y", start + 64, 2);
        drop(writer);
        let reader = Pool::attach_read_only(Seen::new(&region)).unwrap();
        *reader.pmem().at_load.lock().unwrap() = Some((load, Box::new(|| change(&region))));
        for _ in 0..2 {
            let found = reader.find_root("y");
            assert!(matches!(found, Ok(Some(_))), "load {load}: {found:?}");
        }
        assert!(reader.roots().iter().map(|root| root.name()).eq(["y"]), "load {load}");
    }
}

#[test]
fn reader_finds_root_during_replacement() {
    find_during(|region| {
        let writer = Pool::attach(region).unwrap();
        set_at(&writer, "y", writer.data().start + 128, 3);
    });
}

/// The first handle replaces the root that the reader knows, and the second handle replaces that of the first.
#[test]
fn reader_finds_root_during_two_replacements() {
    find_during(|region| {
        for value in 3..5 {
            let writer = Pool::attach(region).unwrap();
            set_at(&writer, "y", writer.data().start + 64 * value, value);
        }
    });
}

/// A transaction stores its slots in place, in any order.
#[test]
fn reader_never_finds_partial_transaction() {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let writer = Pool::format(&region, &PoolOptions::new().with_logged_roots()).unwrap();
    let reader = Pool::attach_read_only(&region).unwrap();
    let found = || reader.find_root("y").map(|root| root.map(|root| root.offset()));
    let run = |target: (u64, u64, u64), is_complete: bool| {
        let mut change = writer.begin_root_change().unwrap();
        let writes = writer.root_write("y", Some(target), &[]).unwrap();
        writer.hide_roots(&mut change, writes.as_slice());
        let before = found();
        writes.iter().for_each(|write| region.store(write.offset(), &write.bytes()[..40]));
        assert_eq!(found(), before, "a part of the change is stored");
        writes.iter().for_each(|write| region.store(write.offset(), write.bytes()));
        assert_eq!(found(), before, "the change is stored, not durable");
        if is_complete {
            change.complete();
        }
    };
    run((8192, 8, 0), true);
    assert_eq!(found(), Ok(Some(8192)));
    run((8256, 8, 0), false);
    assert_eq!(found(), Ok(Some(8192)), "the change is not complete");
    drop(writer);
    assert_eq!(found(), Ok(Some(8192)), "the change is not complete");
    let writer = Pool::attach(&region).unwrap();
    assert_eq!(found(), Ok(Some(8256)), "another handle has made the change durable");
    drop(writer);
}

/// The removal is not certainly durable before a fence of the next handle has succeeded.
#[test]
fn failed_change_stays_hidden_until_reopening() {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let seen = Seen::new(&region);
    let writer = Pool::format(&seen, &PoolOptions::new()).unwrap();
    set_at(&writer, "x", writer.data().start, 1);
    let reader = Pool::attach_read_only(&seen).unwrap();
    let found = || reader.find_root("x").unwrap().is_some();
    seen.fences_left.store(0, SeqCst);
    assert!(writer.remove_root("x").is_err());
    assert!(found(), "the removal failed");
    drop(writer);
    assert!(found(), "the removal failed, and its handle is gone");
    assert!(Pool::attach(&seen).is_err());
    assert!(found(), "the removal failed, and so did opening the pool again");
    seen.fences_left.store(u64::MAX, SeqCst);
    let writer = Pool::attach(&seen).unwrap();
    assert!(!found(), "another handle has made the removal durable");
    drop(writer);
}

#[test]
fn reader_finds_root_in_extended_part() {
    let region = longer_region();
    let mut writer = Pool::attach(&region).unwrap();
    let reader = Pool::attach_read_only(&region).unwrap();
    writer.extend().unwrap();
    set_at(&writer, "x", POOL_BYTES + 4096 - 8, 7);
    assert_eq!(get(&reader, "x"), Some(7));
    assert_eq!((reader.pool_bytes(), reader.data()), (writer.pool_bytes(), writer.data()));
}

#[test]
fn header_is_intact_during_extension() {
    let region = longer_region();
    let attach = || {
        let reader = Pool::attach_read_only(&region).unwrap();
        assert_eq!((reader.header_state(), get(&reader, "x")), (HeaderState::Intact, Some(7)));
        reader.pool_bytes()
    };
    let mut seen = Seen::new(&region);
    seen.before_stores = Some(Box::new(|| assert_eq!(attach(), POOL_BYTES)));
    let writer = Pool::attach(&region).unwrap();
    set_at(&writer, "x", writer.data().start, 7);
    drop(writer);
    let mut writer = Pool::attach(&seen).unwrap();
    seen.fences_left.store(0, SeqCst);
    assert!(writer.extend().is_err());
    assert_eq!((attach(), writer.pool_bytes()), (POOL_BYTES, POOL_BYTES), "the old length in both handles");
    seen.fences_left.store(u64::MAX, SeqCst);
    writer.extend().unwrap();
    assert_eq!(attach(), LONGER_BYTES);
}

/// One copy of the header is corrupted, in a pool whose growth was interrupted. A fence of the open that restores it fails, each in turn.
#[test]
fn header_is_unchanged_during_restore() {
    for (corrupted_at, failing) in [(0, 0), (0, 1), (0, 2), (POOL_BYTES - 4096, 0), (POOL_BYTES - 4096, 1)] {
        let region = longer_region();
        let uuid = Pool::attach_read_only(&region).unwrap().uuid();
        region.store(corrupted_at, &[0xFF; 64]);
        let corrupted = Pool::attach_read_only(&region).unwrap().header_state();
        assert_ne!(corrupted, HeaderState::Intact);
        let attach = || {
            let reader = Pool::attach_read_only(&region).unwrap();
            (reader.header_state(), reader.pool_bytes(), reader.uuid())
        };
        let mut seen = Seen::new(&region);
        seen.before_stores = Some(Box::new(|| assert_eq!(attach(), (corrupted, POOL_BYTES, uuid))));
        seen.fences_left.store(failing, SeqCst);
        assert!(Pool::attach(&seen).is_err(), "fence {failing}");
        assert_eq!(attach(), (corrupted, POOL_BYTES, uuid), "the state before the failed handle");
        seen.fences_left.store(u64::MAX, SeqCst);
        drop(Pool::attach(&seen).unwrap());
        assert_eq!(attach(), (HeaderState::Intact, POOL_BYTES, uuid));
    }
}

/// A fence of the extension fails, each in turn, and another handle opens the pool.
#[test]
fn reader_finds_intact_header_after_failed_extension() {
    for failing in 0..3 {
        let region = longer_region();
        let seen = Seen::new(&region);
        let mut writer = Pool::attach(&seen).unwrap();
        seen.fences_left.store(failing, SeqCst);
        assert!(writer.extend().is_err(), "fence {failing}");
        drop(writer);
        let writer = Pool::attach(&region).unwrap();
        let reader = Pool::attach_read_only(&region).unwrap();
        assert_eq!(reader.header_state(), HeaderState::Intact, "fence {failing}");
        assert_eq!(reader.pool_bytes(), writer.pool_bytes(), "fence {failing}");
    }
}
