//! Pools used in ways that the types allow: read-only ones written to; and random programs with several
//! kills, under models that forgive less than the ordinary one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::pool::format::Header;
use pm_core::{Pmem, Pool, PoolError, PoolOptions, RootError, Uuid, bytes_of, from_bytes};
use pm_crashsim::{Explorer, Model, Oracle, Sequences, SimPmem, Subject};
use std::collections::BTreeMap;
use std::sync::Arc;

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

/// "Features without which a program may read but not write."
#[test]
fn pool_with_unknown_features_is_not_written() {
    let pool = Pool::format(Arc::new(SimPmem::new(LONGER_BYTES)), &options(1)).unwrap();
    set(&pool, "a", 1).unwrap();
    let pmem = pool.into_pmem();
    let mut header: Header = from_bytes(|bytes| pmem.load(0, bytes));
    header.features_ro_compat = 1;
    for at in [0, LONGER_BYTES - 4096] {
        pmem.store(at, bytes_of(&header.sealed()));
    }
    assert!(matches!(Pool::attach(Arc::clone(&pmem)), Err(PoolError::UnknownFeatures { .. })));
    let pool = Pool::attach_read_only(Arc::clone(&pmem)).unwrap();
    let before = pmem.to_image().to_bytes();
    let is_set = set(&pool, "a", 2).is_ok();
    let is_removed = pool.remove_root("a").is_ok();
    let is_same = before == pmem.to_image().to_bytes();
    assert!(is_same, "set: {is_set}, removed: {is_removed}");
}

/// Of a name whose slot is damaged it is not known whether it is there; to say that it is gone is as wrong as to say that it is not there.
#[test]
fn removal_of_a_root_that_may_be_damaged_is_not_acknowledged() {
    let pool = Pool::format(Arc::new(SimPmem::new(POOL_BYTES)), &options(1)).unwrap();
    set(&pool, "a", 1).unwrap();
    // One bit of the slot's generation.
    pool.pmem().store(4096 + 8, &[0x80]);
    assert!(matches!(get(&pool, "a"), Err(RootError::Damaged { .. })));
    if pool.remove_root("a").is_ok() {
        assert_eq!(get(&pool, "a"), Ok(None), "it was said to be gone");
    }
}

/// A root is set while the slot of its older value is damaged, and later the medium returns the old bits again.
#[test]
fn root_set_while_its_slot_was_damaged_counts_when_the_damage_is_gone() {
    let pool = Pool::format(Arc::new(SimPmem::new(POOL_BYTES)), &options(1)).unwrap();
    for value in 1..4 {
        set(&pool, "a", value).unwrap();
    }
    let (at, _) = (4096 + 64 * (0..64).find(|slot| pool.pmem().load_u64(4096 + 64 * slot) != 0).unwrap(), ());
    let mut line = [0; 64];
    pool.pmem().load(at, &mut line);
    pool.pmem().store(at, &[0xDE; 64]);
    let pool = Pool::attach(pool.into_pmem()).unwrap();
    if set(&pool, "a", 9).is_err() {
        return;
    }
    pool.pmem().store(at, &line);
    let pool = Pool::attach(pool.into_pmem()).unwrap();
    assert_eq!(get(&pool, "a"), Ok(Some(9)), "an acknowledged root was replaced by one that was older");
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

/// Two slots of one name and one generation: of a root that a transaction has removed and a later one has set again, when the
/// power fails before the removal is in place. A reader finds both.
#[test]
fn every_way_to_look_for_a_root_finds_the_same() {
    let pool = Pool::format(Arc::new(SimPmem::new(POOL_BYTES)), &options(1)).unwrap();
    set(&pool, "a", 1).unwrap();
    let pmem = pool.into_pmem();
    let mut old = [0; 64];
    pmem.load(4096, &mut old);
    let pool = Pool::attach(pmem).unwrap();
    pool.remove_root("a").unwrap();
    set(&pool, "a", 2).unwrap();
    let pmem = pool.into_pmem();
    pmem.store(4096 + 64, &old);
    let reader = Pool::attach_read_only(pmem).unwrap();
    let listed = reader.roots()[0].offset();
    let found = reader.find_root("a").unwrap().unwrap().offset();
    assert_eq!(listed, found);
}

/// A change that never began, for the closure that chooses panicked, is no failed fence.
#[test]
fn panic_before_a_change_leaves_the_directory_changeable() {
    let pool = Pool::format(Arc::new(SimPmem::new(POOL_BYTES)), &options(1)).unwrap();
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(pool.change_roots(|| -> Result<Vec<pm_core::RootWrite>, RootError> {
                panic!("nothing is chosen")
            }));
        }));
    assert!(panicked.is_err());
    assert_eq!(set(&pool, "a", 1), Ok(()));
}
