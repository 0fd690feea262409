//! A process is killed in the middle of a change of a pool, its stores are kept in the caches, the next process opens the
//! pool, relies on what it finds and acknowledges it, and then the power fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{HeaderState, Pmem, Pool, PoolError, PoolOptions, RootError, Uuid};
use pm_crashsim::{Crash, Explorer, Faults, Image, Model, Oracle, Run, Sequences, SimPmem, Subject};
use std::collections::BTreeMap;
use std::sync::Arc;

const POOL_BYTES: u64 = 1 << 15;
const LONGER_BYTES: u64 = POOL_BYTES + 8192;

type SimPool = Pool<Arc<SimPmem>>;

fn options(identity: u8) -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([identity; 16])).created_s(0)
}

fn set(pool: &SimPool, name: &str, value: u64) -> Result<(), RootError> {
    pool.scope(|pm| {
        let place = pm.claim(pool.data().start + 64 * value)?;
        pm.set_root_in_flight(name, pm.flush(pm.write(place, &value))).map(drop)
    })
}

fn get(pool: &SimPool, name: &str) -> Option<u64> {
    pool.scope(|pm| pm.root::<u64>(name).unwrap().map(|link| pm.read(link).unwrap()))
}

fn attach(pmem: &Arc<SimPmem>) -> SimPool {
    Pool::attach(Arc::clone(pmem)).unwrap()
}

/// A pool with `counter` 1, in a region of `region_bytes`.
fn image(region_bytes: u64) -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    set(&Pool::format(Arc::clone(&sim), &options(1)).unwrap(), "counter", 1).unwrap();
    let mut bytes = sim.to_image().to_bytes();
    bytes.resize(usize::try_from(region_bytes).unwrap(), 0);
    Image::from_bytes(bytes)
}

/// With all choices, in the ordinary model: kills are about what is flushed, not about the order inside a line.
fn explorer() -> Explorer {
    Explorer::new(Model::Px86Line).crashes(1).choices_per_point(1 << 13)
}

fn check(
    explorer: &Explorer,
    image: &Image,
    first: impl Fn(&Run<u64>),
    second: impl Fn(&Run<u64>) + Sync,
    check: impl Fn(&Crash<u64>) -> Result<(), String> + Sync,
) {
    let coverage = explorer.check_restarted(image, first, second, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    assert!(coverage.kills.tried > 1, "{coverage}");
}

/// What the check finds is what the last process acknowledged, or what it was doing.
fn is_acked<T: PartialEq + core::fmt::Debug>(found: T, acked: Option<T>) -> Result<(), String> {
    match acked {
        Some(acked) if acked != found => Err(format!("{found:?} where {acked:?} was acknowledged")),
        _ => Ok(()),
    }
}

#[test]
fn root_that_the_next_process_found_is_durable() {
    for region_bytes in [POOL_BYTES, LONGER_BYTES] {
        check(
            &explorer(),
            &image(region_bytes),
            |run| set(&attach(run.pmem()), "counter", 2).unwrap(),
            |run| run.ack(get(&attach(run.pmem()), "counter").unwrap()),
            |crash| is_acked(get(&attach(crash.pmem()), "counter").unwrap(), crash.acked().last().copied()),
        );
    }
}

#[test]
fn removal_that_the_next_process_found_is_durable() {
    check(
        &explorer(),
        &image(POOL_BYTES),
        |run| attach(run.pmem()).remove_root("counter").unwrap(),
        |run| run.ack(get(&attach(run.pmem()), "counter").unwrap_or(0)),
        |crash| is_acked(get(&attach(crash.pmem()), "counter").unwrap_or(0), crash.acked().last().copied()),
    );
}

#[test]
fn growth_that_the_next_process_found_is_durable() {
    check(
        &explorer(),
        &image(LONGER_BYTES),
        |run| attach(run.pmem()).extend().unwrap(),
        |run| run.ack(attach(run.pmem()).pool_bytes()),
        |crash| {
            let pool = attach(crash.pmem());
            assert_eq!(get(&pool, "counter"), Some(1));
            is_acked(pool.pool_bytes(), crash.acked().last().copied())
        },
    );
}

/// The first line of the header is lost with the power: then all depends on the backup.
#[test]
fn backup_that_the_next_process_found_is_durable() {
    let mut corrupted = image(LONGER_BYTES).to_bytes();
    corrupted[usize::try_from(POOL_BYTES).unwrap() - 4096 + 64] ^= 1;
    let corrupted = Image::from_bytes(corrupted);
    let explorer = explorer().faults(Faults::none().poison(1).within(0..64));
    // 1 for a pool that is whole, and its length.
    let open = |run: &Run<u64>| {
        let pool = attach(run.pmem());
        run.ack(pool.pool_bytes());
    };
    let sound = |crash: &Crash<u64>| match Pool::attach(Arc::clone(crash.pmem())) {
        Ok(pool) => {
            assert!(
                crash.acked().is_empty()
                    || pool.header_state() == HeaderState::Intact
                    || !crash.faults().is_empty()
            );
            is_acked(pool.pool_bytes(), crash.acked().last().copied())
        }
        Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    // The backup is being restored.
    check(&explorer, &corrupted, |run| drop(attach(run.pmem())), open, sound);
    // The pool is growing: the backup at the new end is newer than what counts, until the header is written.
    check(&explorer, &image(LONGER_BYTES), |run| attach(run.pmem()).extend().unwrap(), open, sound);
}

/// The newer backup that an interrupted growing left is being erased when the process is killed. It is at the region's end, or inside, where
/// the region has grown since.
#[test]
fn abandoned_backup_that_the_next_process_did_not_find_is_gone() {
    for region_bytes in [LONGER_BYTES, LONGER_BYTES + 8192] {
        let before = {
            let longer = Arc::new(SimPmem::from_image(&image(LONGER_BYTES), Model::Px86Line));
            let mut header = [0; 4096];
            let mut backup = [0; 4096];
            longer.load(0, &mut header);
            longer.load(POOL_BYTES - 4096, &mut backup);
            attach(&longer).extend().unwrap();
            longer.store(0, &header);
            longer.store(POOL_BYTES - 4096, &backup);
            let mut bytes = longer.to_image().to_bytes();
            bytes.resize(usize::try_from(region_bytes).unwrap(), 0);
            Image::from_bytes(bytes)
        };
        check(
            &explorer().faults(Faults::none().poison(1).within(0..64)),
            &before,
            |run| drop(attach(run.pmem())),
            |run| run.ack(attach(run.pmem()).pool_bytes()),
            |crash| {
                let mut page = [1; 4096];
                let pool = attach(crash.pmem());
                crash.pmem().load(LONGER_BYTES - 4096, &mut page);
                if pool.pool_bytes() == POOL_BYTES && page != [0; 4096] {
                    return Err(format!("in {region_bytes} bytes something of the backup is left"));
                }
                is_acked(pool.pool_bytes(), crash.acked().last().copied())
            },
        );
    }
}

/// Both processes format. What the first one erased may be on the medium still.
#[test]
fn killed_format_is_followed_by_another_without_a_mixture() {
    let format = |run: &Run<u64>, identity| {
        let formatted = Pool::format_with(Arc::clone(run.pmem()), &options(identity).overwrite(), |pool| {
            set(pool, "new", u64::from(identity))?;
            Ok::<_, Box<dyn std::error::Error>>(())
        });
        formatted.unwrap();
        run.ack(u64::from(identity));
    };
    for region_bytes in [POOL_BYTES, LONGER_BYTES] {
        check(
            &explorer(),
            &image(region_bytes),
            |run| format(run, 2),
            |run| format(run, 3),
            |crash| match Pool::attach(Arc::clone(crash.pmem())) {
                Ok(pool) => {
                    let (identity, roots) = (u64::from(pool.uuid().into_bytes()[0]), pool.roots().len());
                    let is_whole = match identity {
                        1 => get(&pool, "counter") == Some(1) && roots == 1,
                        identity => get(&pool, "new") == Some(identity) && roots == 1,
                    };
                    let is_last = crash.acked().last().is_none_or(|acked| identity >= *acked);
                    if is_whole && is_last { Ok(()) } else { Err(format!("{identity}: {:?}", pool.roots())) }
                }
                Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().len() < 2 => {
                    Ok(())
                }
                Err(error) => Err(error.to_string()),
            },
        );
    }
}

/// The growing may have erased the backup inside, with its magic, and not durably.
#[test]
fn killed_growth_is_followed_by_a_format_without_a_mixture() {
    check(
        &explorer(),
        &image(LONGER_BYTES),
        |run| attach(run.pmem()).extend().unwrap(),
        |run| {
            Pool::format(Arc::clone(run.pmem()), &options(2).overwrite()).unwrap();
            run.ack(2);
        },
        |crash| match Pool::attach(Arc::clone(crash.pmem())) {
            Ok(pool) => match (pool.uuid().into_bytes()[0], pool.roots().len(), crash.acked()) {
                (1, 1, []) if get(&pool, "counter") == Some(1) => Ok(()),
                (2, 0, _) => Ok(()),
                (identity, ..) => Err(format!("pool {identity} with {:?}", pool.roots())),
            },
            Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().is_empty() => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        },
    );
}

/// The pool that both processes format over was made over a longer one's part, whose backup is still in its data. A process that
/// is killed while it erases that backup must leave it for the next one to find.
#[test]
fn backup_inside_a_pool_stays_erased_after_a_killed_format() {
    const INNER: u64 = POOL_BYTES - 8192;
    let before = {
        let shorter = Pool::format(SimPmem::new(INNER), &options(1)).unwrap();
        let mut backup = [0; 4096];
        shorter.pmem().load(INNER - 4096, &mut backup);
        let sim = Arc::new(SimPmem::new(POOL_BYTES));
        set(&Pool::format(Arc::clone(&sim), &options(2)).unwrap(), "counter", 1).unwrap();
        sim.store(INNER - 4096, &backup);
        sim.to_image()
    };
    let format = |run: &Run<u64>, identity| {
        Pool::format(Arc::clone(run.pmem()), &options(identity).overwrite()).unwrap();
        run.ack(u64::from(identity));
    };
    check(
        &explorer(),
        &before,
        |run| format(run, 3),
        |run| format(run, 4),
        |crash| match Pool::attach(Arc::clone(crash.pmem())) {
            Ok(pool) => {
                let (identity, roots) = (u64::from(pool.uuid().into_bytes()[0]), pool.roots());
                let is_whole = match identity {
                    2 => roots.len() == 1,
                    identity => identity > 2 && roots.is_empty(),
                };
                let is_last = crash.acked().last().is_none_or(|acked| identity >= *acked);
                if is_whole && is_last { Ok(()) } else { Err(format!("pool {identity} with {roots:?}")) }
            }
            Err(PoolError::NotAPool | PoolError::HeadersCorrupted { .. }) if crash.acked().len() < 2 => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        },
    );
}

/// A pool as its user sees it: its length, and the value of each root.
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
        assert_eq!(pool.corrupted_root_count(), 0);
        let roots = pool.roots().into_iter().map(|root| (root.name().to_owned(), root.offset()));
        let number = |offset| (offset - pool.data().start) / 64;
        Ok((pool.pool_bytes(), roots.map(|(name, offset)| (name, number(offset))).collect()))
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

/// Knuth's linear congruential generator: the same sequences each time.
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

/// Sequences of two to five operations, killed and crashed where they can be, with two of the choices there. As many as
/// `PM_CRASH_SEQUENCES` says, or 200; `PM_CRASH_FIRST` is the seed of the first, to share a long campaign between processes.
#[test]
fn random_sequences_survive_kills_and_crashes() {
    let number = |name, default| std::env::var(name).map_or(default, |number| number.parse::<u64>().unwrap());
    let first = number("PM_CRASH_FIRST", 0);
    for seed in first..first + number("PM_CRASH_SEQUENCES", 200) {
        let mut random = Random(seed);
        let ops: Vec<Op> = (0..2 + random.below(4)).map(|_| random.op()).collect();
        let explorer = Explorer::new(Model::Px86Line).seed(seed).kills(1).crashes(1);
        let explorer = explorer.choices_per_point(2).nested_choices_per_point(1);
        Sequences::new(Whole, LONGER_BYTES).unwrap().explorer(explorer).check(&ops);
    }
}

/// Fewer and shorter ones, with a second kill and a crash of the recovery, also under the models that forgive less.
#[test]
fn random_sequences_survive_two_kills_and_two_crashes_under_every_model() {
    for seed in 0..4 {
        for model in Model::ALL {
            let mut random = Random(seed ^ 0x5eed);
            let ops: Vec<Op> = (0..2 + random.below(3)).map(|_| random.op()).collect();
            let explorer = Explorer::new(model).seed(seed).kills(2).crashes(2).recoveries(3000);
            let explorer = explorer.choices_per_point(3).nested_choices_per_point(2);
            Sequences::new(Whole, LONGER_BYTES).unwrap().explorer(explorer).check(&ops);
        }
    }
}
