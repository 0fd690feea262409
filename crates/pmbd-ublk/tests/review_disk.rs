//! Disks in pools: what may be put into one, by whom at the same time, and what a killed server leaves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Domain, FenceError, Pmem, Pool, PoolOptions, Region, Uuid};
use pm_crashsim::{Crash, Explorer, Image, Model, Run};
use pmbd::disk::{read_geometry, write_geometry};
use pmbd::{BlockOp, Engine, Geometry, SectorSize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

const REGION_BYTES: u64 = 1 << 16;
const START: u64 = 12_288;
const CAPACITY: u64 = 32 << 10;

fn geometry(capacity_bytes: u64) -> Geometry {
    Geometry::new(START, capacity_bytes, SectorSize::B512).unwrap()
}

fn options() -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0)
}

/// "When it returns, the disk is in the pool."
#[test]
fn disk_that_is_written_can_be_read() {
    let end = REGION_BYTES - 4096;
    for (start, capacity) in
        [(0, 512), (4096, 4096), (8192, 4096), (START, end - START + 4096), (START + 512, 512)]
    {
        let pool = Pool::format(Region::anonymous(REGION_BYTES).unwrap(), &options()).unwrap();
        write_geometry(&pool, geometry(CAPACITY)).unwrap();
        let other = Geometry::new(start, capacity, SectorSize::B512).unwrap();
        let expected = if write_geometry(&pool, other).is_ok() { other } else { geometry(CAPACITY) };
        let found = read_geometry(&pool);
        assert_eq!(found.as_ref().ok(), Some(&expected), "{other:?} has taken the disk's place: {found:?}");
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// Runs something before the first store of a descriptor, and loses power in the middle of that store.
struct Torn {
    region: Region,
    hook: Mutex<Option<Hook>>,
}

impl Pmem for Torn {
    fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }
    fn domain(&self) -> Domain {
        self.region.domain()
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.region.load(offset, out);
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        let hook = self.hook.lock().unwrap().take();
        let Some(hook) = hook else { return self.region.store(offset, bytes) };
        hook();
        self.region.store(offset, &bytes[..16]);
        panic!("the power fails");
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

/// "A crash before leaves the old one, or the new one": the second thread's disk was acknowledged.
#[test]
fn two_threads_that_change_the_disk_leave_one_of_both() {
    let region = Region::anonymous(REGION_BYTES).unwrap();
    let pool = Arc::new(Pool::format(Torn { region, hook: Mutex::new(None) }, &options()).unwrap());
    write_geometry(&pool, geometry(4096)).unwrap();
    let other = Arc::clone(&pool);
    let hook: Hook = Box::new(move || write_geometry(&other, geometry(8192)).unwrap());
    *pool.pmem().hook.lock().unwrap() = Some(hook);
    let crashed = catch_unwind(AssertUnwindSafe(|| write_geometry(&pool, geometry(16_384))));
    assert!(crashed.is_err());
    let found = Pool::attach(&pool.pmem().region).map(|pool| read_geometry(&pool));
    assert!(matches!(&found, Ok(Ok(found)) if found.capacity_bytes() != 4096), "{found:?}");
}

/// A server is killed in the middle of a write that no client was told of. The next one shows the new bytes, to a file system that
/// replays its journal from them, say, and says that it has no volatile cache. Then the power fails.
#[test]
fn bytes_that_the_next_server_has_shown_stay() {
    let engine = |run: &Run<u8>| Engine::new(Arc::clone(run.pmem()), geometry(CAPACITY)).unwrap();
    let image = Image::from_bytes(vec![0; usize::try_from(REGION_BYTES).unwrap()]);
    let found = Explorer::new(Model::Px86Line).crashes(1).explore_restarted(
        &image,
        |run: &Run<u8>| engine(run).execute_bytes(3, BlockOp::Write { data: &[9; 3], fua: false }).unwrap(),
        |run| {
            let mut out = [0];
            engine(run).execute_bytes(3, BlockOp::Read { out: &mut out }).unwrap();
            run.ack(out[0]);
        },
        |crash: &Crash<u8>| {
            let mut out = [0];
            crash.pmem().load(START + 3, &mut out);
            match crash.acked().last() {
                Some(shown) if *shown != out[0] => Err(format!("{} is there, {shown} was shown", out[0])),
                _ => Ok(()),
            }
        },
    );
    assert!(found.is_ok(), "{}", found.unwrap_err());
}
