//! Random programs of roots, growth and reopening, with several kills and crashes, under models that forgive less than the
//! ordinary one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Pmem, Pool, PoolOptions, RootError, Uuid};
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
    let count = std::env::var("PM_CRASH_SEQUENCES").map_or(4, |count| count.parse().unwrap());
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
