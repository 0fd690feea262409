//! Several handles of one region: those that write exclude each other, and one that reads may be there beside one that writes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Domain, FenceError, Pmem, Pool, PoolOptions, Region, Uuid, WriterGuard};
use std::ops::Range;
use std::sync::Mutex;

const POOL_BYTES: u64 = 1 << 15;
const LONGER_BYTES: u64 = POOL_BYTES + 8192;
const ROOTS: Range<u64> = 4096..8192;

type Other<'r> = Box<dyn FnOnce() + Send + 'r>;

/// The region as one thread sees it, with what another thread does at one moment.
struct Seen<'r> {
    region: &'r Region,
    /// Run before the writer's lock is asked for.
    before_lock: Mutex<Option<Other<'r>>>,
    /// Run before the load of a word of the directory with this number.
    at_load: Mutex<Option<(u64, Other<'r>)>>,
}

impl<'r> Seen<'r> {
    fn new(region: &'r Region) -> Self {
        Self { region, before_lock: Mutex::new(None), at_load: Mutex::new(None) }
    }
}

impl Pmem for Seen<'_> {
    fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }
    fn domain(&self) -> Domain {
        self.region.domain()
    }
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
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.region.store(offset, bytes);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.region.store_nt(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.region.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.region.store_u64(offset, value);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.region.store_u128(offset, value);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.region.compare_exchange_u64(offset, current, new)
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.region.flush(offset, len_bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.region.fence()
    }
}

fn set<P: Pmem>(pool: &Pool<P>, name: &str, at: u64, value: u64) {
    pool.scope(|pm| {
        let place = pm.claim(at).unwrap();
        pm.set_root_in_flight(name, pm.flush(pm.write(place, &value))).unwrap();
    });
}

fn get<P: Pmem>(pool: &Pool<P>, name: &str) -> Option<u64> {
    pool.scope(|pm| pm.root::<u64>(name).unwrap().map(|link| pm.read(link).unwrap()))
}

/// A pool in a region that is longer: its growth was interrupted.
fn longer_region() -> Region {
    let short = Pool::format(Region::anonymous(POOL_BYTES).unwrap(), &PoolOptions::new()).unwrap();
    let mut bytes = vec![0; usize::try_from(POOL_BYTES).unwrap()];
    short.pmem().load(0, &mut bytes);
    let region = Region::anonymous(LONGER_BYTES).unwrap();
    region.store(0, &bytes);
    region
}

/// While one thread opens the pool, another one opens it, extends it, stores into its new data, and closes it.
#[test]
fn writer_works_with_the_header_that_the_writer_before_it_left() {
    let region = longer_region();
    let seen = Seen::new(&region);
    let at = POOL_BYTES - 4096;
    *seen.before_lock.lock().unwrap() = Some(Box::new(|| {
        let mut first = Pool::attach(&region).unwrap();
        first.extend().unwrap();
        set(&first, "counter", at, 7);
        assert_eq!((first.pool_bytes(), get(&first, "counter")), (LONGER_BYTES, Some(7)));
    }));
    let mut second = Pool::attach(seen).unwrap();
    let known = second.pool_bytes();
    second.extend().unwrap();
    drop(second);
    let third = Pool::attach(&region).unwrap();
    assert_eq!(get(&third, "counter"), Some(7), "the pool was taken for one of {known} bytes");
}

/// As above, and the other thread formats over the pool.
#[test]
fn writer_opens_the_pool_that_the_writer_before_it_made() {
    let region = longer_region();
    let seen = Seen::new(&region);
    let options = PoolOptions::new().uuid(Uuid::from_bytes([9; 16])).overwrite().with_logged_roots();
    *seen.before_lock.lock().unwrap() = Some(Box::new(|| {
        let first = Pool::format(&region, &options).unwrap();
        assert!(first.has_logged_roots());
    }));
    let second = Pool::attach(seen).unwrap();
    let (uuid, is_logged) = (second.uuid(), second.has_logged_roots());
    assert_eq!((uuid, is_logged), (Uuid::from_bytes([9; 16]), true), "the pool that was overwritten");
}
