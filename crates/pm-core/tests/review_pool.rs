//! Pools used in ways that the types allow: read-only ones written to, two of one region; and random programs with several
//! kills, under models that forgive less than the ordinary one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Domain, FenceError, Pmem, Pool, PoolError, PoolOptions, Region, RootError, Uuid};
use pm_crashsim::{Explorer, Model, Oracle, Sequences, SimPmem, Subject};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const POOL_BYTES: u64 = 1 << 15;
const LONGER_BYTES: u64 = POOL_BYTES + 8192;

fn options(identity: u8) -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([identity; 16])).created_s(0)
}

fn set<P: Pmem>(pool: &Pool<P>, name: &str, value: u64) -> Result<(), RootError> {
    pool.scope(|pm| {
        let place = pm.claim(pool.data().start + 64 * value)?;
        pm.set_root_in_flight(name, pm.flush(pm.write(place, &value))).map(drop)
    })
}

fn get<P: Pmem>(pool: &Pool<P>, name: &str) -> Result<Option<u64>, RootError> {
    pool.scope(|pm| Ok(pm.root::<u64>(name)?.map(|link| pm.read(link).unwrap())))
}

/// Runs something before a fence, once.
struct Hooked {
    region: Region,
    before_fence: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Pmem for Hooked {
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
        let hook = self.before_fence.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.region.fence()
    }
}

/// Both are opened for writing, by safe code, and each has a lock of its own.
#[test]
fn two_pools_of_one_region_do_not_lose_each_others_roots() {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let pmem = Arc::new(Hooked { region, before_fence: Mutex::new(None) });
    let first = Pool::format(Arc::clone(&pmem), &options(1)).unwrap();
    // Refused, if it is as it should be.
    let Ok(second) = Pool::attach(Arc::clone(&pmem)) else { return };
    let hook = move || set(&second, "second", 2).unwrap();
    *pmem.before_fence.lock().unwrap() = Some(Box::new(hook));
    set(&first, "first", 1).unwrap();
    drop(first);
    *pmem.before_fence.lock().unwrap() = None;
    let pool = Pool::attach(pmem).unwrap();
    let found = (get(&pool, "first"), get(&pool, "second"), pool.damaged_root_count());
    assert_eq!(found, (Ok(Some(1)), Ok(Some(2)), 0), "both were acknowledged");
}

struct Whole;

#[derive(Clone, Copy, Debug)]
enum Op {
    Set(usize, u64),
    Remove(usize),
    Extend,
    Reopen,
    ReopenReadOnlyFirst,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

type SimPool = Pool<Arc<SimPmem>>;

impl Subject for Whole {
    type Op = Op;
    type State = (u64, BTreeMap<String, u64>);
    type Store = Option<SimPool>;
    type Error = Box<dyn std::error::Error>;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<Self::Store, Self::Error> {
        let shorter = Pool::format(SimPmem::new(POOL_BYTES), &options(1))?;
        let mut bytes = vec![0; usize::try_from(POOL_BYTES)?];
        shorter.pmem().load(0, &mut bytes);
        pmem.store(0, &bytes);
        self.open(pmem)
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Self::Store, Self::Error> {
        Ok(Some(Pool::attach(pmem)?))
    }

    fn apply(&self, store: &mut Self::Store, op: &Op) -> Result<(), Self::Error> {
        let mut pool = store.take().ok_or("no pool")?;
        match *op {
            Op::Set(name, value) => set(&pool, NAMES[name], value)?,
            Op::Remove(name) => pool.remove_root(NAMES[name])?,
            Op::Extend => pool.extend()?,
            Op::Reopen => pool = Pool::attach(pool.into_pmem())?,
            Op::ReopenReadOnlyFirst => {
                pool = Pool::attach(Pool::attach_read_only(pool.into_pmem())?.into_pmem())?;
            }
        }
        *store = Some(pool);
        Ok(())
    }

    fn observe(&self, store: &Self::Store) -> Result<Self::State, Self::Error> {
        let pool = store.as_ref().ok_or("no pool")?;
        assert_eq!(pool.damaged_root_count(), 0);
        let roots = pool.roots().into_iter().map(|root| (root.name().to_owned(), root.offset()));
        let number = |offset| (offset - pool.data().start) / 64;
        let roots: BTreeMap<_, _> = roots.map(|(name, offset)| (name, number(offset))).collect();
        for name in NAMES {
            assert_eq!(get(pool, name)?, roots.get(name).copied());
        }
        Ok((pool.pool_bytes(), roots))
    }
}

impl Oracle for Whole {
    fn initial(&self) -> Self::State {
        (POOL_BYTES, BTreeMap::new())
    }

    fn expect(&self, (pool_bytes, roots): &mut Self::State, op: &Op) {
        match *op {
            Op::Set(name, value) => drop(roots.insert(NAMES[name].to_owned(), value)),
            Op::Remove(name) => drop(roots.remove(NAMES[name])),
            Op::Extend => *pool_bytes = LONGER_BYTES,
            Op::Reopen | Op::ReopenReadOnlyFirst => {}
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn op(&mut self) -> Op {
        let name = usize::try_from(self.below(3)).unwrap();
        match self.below(9) {
            0..4 => Op::Set(name, self.below(4)),
            4..6 => Op::Remove(name),
            6 => Op::Extend,
            7 => Op::Reopen,
            _ => Op::ReopenReadOnlyFirst,
        }
    }
}

#[test]
fn random_programs_survive_two_kills_and_two_crashes_under_every_model() {
    let count = std::env::var("PM_REVIEW_SEQUENCES").map_or(8, |count| count.parse().unwrap());
    for seed in 0..count {
        for model in Model::ALL {
            let mut random = Random(seed ^ 0x5eed);
            let ops: Vec<Op> = (0..2 + random.below(3)).map(|_| random.op()).collect();
            let explorer = Explorer::new(model).seed(seed).kills(2).crashes(2).recoveries(3000);
            let explorer = explorer.choices_per_point(3).nested_choices_per_point(2);
            Sequences::new(Whole, LONGER_BYTES).unwrap().explorer(explorer).check(&ops);
        }
    }
}

/// Media errors come in blocks of 256 or 512 bytes. The file is longer than its pool after an interrupted growing, and stays so
/// until the pool is grown again. The backup is whole.
#[test]
fn header_that_is_lost_is_restored_from_a_backup_inside_the_region() {
    for lost_bytes in [64, 128, 256, 512, 4096] {
        let pool = Pool::format(SimPmem::new(POOL_BYTES), &options(1)).unwrap();
        set(&pool, "a", 1).unwrap();
        let mut bytes = pool.pmem().to_image().to_bytes();
        bytes.resize(usize::try_from(LONGER_BYTES).unwrap(), 0);
        bytes[..lost_bytes].fill(0xDE);
        let longer = SimPmem::from_image(&pm_crashsim::Image::from_bytes(bytes), Model::Px86Line);
        let pool = Pool::attach(Arc::new(longer));
        let found = pool.as_ref().map(|pool| get(pool, "a"));
        assert!(matches!(found, Ok(Ok(Some(1)))), "{lost_bytes} bytes are lost: {:?}", pool.err());
    }
}

/// And then it is "no pool", and formatted without a word.
#[test]
fn pool_with_a_whole_backup_is_not_formatted_over() {
    let pool = Pool::format(SimPmem::new(POOL_BYTES), &options(1)).unwrap();
    set(&pool, "a", 1).unwrap();
    let mut bytes = pool.pmem().to_image().to_bytes();
    bytes.resize(usize::try_from(LONGER_BYTES).unwrap(), 0);
    bytes[..128].fill(0xDE);
    let longer = SimPmem::from_image(&pm_crashsim::Image::from_bytes(bytes), Model::Px86Line);
    let formatted = Pool::format(Arc::new(longer), &options(2)).map(|_| "another one is in its place");
    assert!(matches!(formatted, Err(PoolError::AlreadyAPool)), "{formatted:?}");
}
