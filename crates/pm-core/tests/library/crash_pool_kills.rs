//! A process is killed during a change of a pool, and its stores stay in the caches. The next process opens the pool, relies on the state that
//! it finds, and acknowledges it. Then the power fails.

use crate::pools::{LONGER_BYTES, POOL_BYTES, SimPool, get, header_of, longer, options, page, set, try_set};
use fastrand::Rng;
use pm_core::{HeaderState, Pmem, Pool, PoolError};
use pm_crashsim::{Crash, Explorer, Faults, Image, Model, Oracle, Run, Sequences, SimPmem, Subject};
use std::collections::BTreeMap;
use std::sync::Arc;

fn attach(pmem: &Arc<SimPmem>) -> SimPool {
    Pool::attach(Arc::clone(pmem)).unwrap()
}

/// A pool with `counter` 1, in a region of `region_bytes`.
fn image(region_bytes: u64) -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    set(&Pool::format(Arc::clone(&sim), &options(1)).unwrap(), "counter", 1, 1);
    longer(&sim.to_image(), region_bytes)
}

/// An explorer that tries all choices, under the ordinary model only: kills concern flushes, not the order inside a line.
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

/// While formatting is not acknowledged, a crash may leave no pool or partial headers.
fn check_refusal(error: &PoolError, is_format_pending: bool) -> Result<(), String> {
    match error {
        PoolError::NotAPool | PoolError::HeadersCorrupted { .. } if is_format_pending => Ok(()),
        error => Err(error.to_string()),
    }
}

/// Checks that the state equals the last acknowledged one, if there is one.
fn eq_acked<T: PartialEq + core::fmt::Debug>(found: T, acked: Option<T>) -> Result<(), String> {
    match acked {
        Some(acked) if acked != found => Err(format!("found {found:?}, but {acked:?} was acknowledged")),
        _ => Ok(()),
    }
}

#[test]
fn root_found_by_next_process_is_durable() {
    for region_bytes in [POOL_BYTES, LONGER_BYTES] {
        check(
            &explorer(),
            &image(region_bytes),
            |run| set(&attach(run.pmem()), "counter", 2, 2),
            |run| run.ack(get(&attach(run.pmem()), "counter").unwrap()),
            |crash| eq_acked(get(&attach(crash.pmem()), "counter").unwrap(), crash.acked().last().copied()),
        );
    }
}

#[test]
fn removal_found_by_next_process_is_durable() {
    check(
        &explorer(),
        &image(POOL_BYTES),
        |run| attach(run.pmem()).remove_root("counter").unwrap(),
        |run| run.ack(get(&attach(run.pmem()), "counter").unwrap_or(0)),
        |crash| eq_acked(get(&attach(crash.pmem()), "counter").unwrap_or(0), crash.acked().last().copied()),
    );
}

#[test]
fn growth_found_by_next_process_is_durable() {
    check(
        &explorer(),
        &image(LONGER_BYTES),
        |run| attach(run.pmem()).extend().unwrap(),
        |run| run.ack(attach(run.pmem()).pool_bytes()),
        |crash| {
            let pool = attach(crash.pmem());
            assert_eq!(get(&pool, "counter"), Some(1));
            eq_acked(pool.pool_bytes(), crash.acked().last().copied())
        },
    );
}

/// The power failure also corrupts the first line of the header, so that opening depends on the backup.
#[test]
fn backup_found_by_next_process_is_durable() {
    let mut corrupted = image(LONGER_BYTES).to_bytes();
    corrupted[usize::try_from(POOL_BYTES).unwrap() - 4096 + 64] ^= 1;
    let corrupted = Image::from_bytes(corrupted);
    let explorer = explorer().faults(Faults::none().poison(1).within(0..64));
    // Acknowledges the length of the pool.
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
            eq_acked(pool.pool_bytes(), crash.acked().last().copied())
        }
        Err(error) => check_refusal(&error, crash.acked().is_empty()),
    };
    // The first process restores the backup.
    check(&explorer, &corrupted, |run| drop(attach(run.pmem())), open, sound);
    // The first process grows the pool: until the header is written, the backup at the new end is newer than the two valid copies.
    check(&explorer, &image(LONGER_BYTES), |run| attach(run.pmem()).extend().unwrap(), open, sound);
}

/// The process is killed while it erases the newer backup that an interrupted growth left at the end of the region, or inside the region if it has
/// grown since.
#[test]
fn abandoned_backup_stays_erased() {
    for region_bytes in [LONGER_BYTES, LONGER_BYTES + 8192] {
        let before = {
            let sim = Arc::new(SimPmem::from_image(&image(LONGER_BYTES), Model::Px86Line));
            let (header, backup) = (page(&sim, 0), page(&sim, POOL_BYTES - 4096));
            attach(&sim).extend().unwrap();
            sim.store(0, &header);
            sim.store(POOL_BYTES - 4096, &backup);
            longer(&sim.to_image(), region_bytes)
        };
        check(
            &explorer().faults(Faults::none().poison(1).within(0..64)),
            &before,
            |run| drop(attach(run.pmem())),
            |run| run.ack(attach(run.pmem()).pool_bytes()),
            |crash| {
                let pool = attach(crash.pmem());
                let is_erased = page(crash.pmem(), LONGER_BYTES - 4096) == [0; 4096];
                if pool.pool_bytes() == POOL_BYTES && !is_erased {
                    return Err(format!("a part of the backup is left in {region_bytes} bytes"));
                }
                eq_acked(pool.pool_bytes(), crash.acked().last().copied())
            },
        );
    }
}

/// Both processes format. Pages that the first process erased may still have their old contents on the medium.
#[test]
fn format_after_killed_format_is_atomic() {
    let format = |run: &Run<u64>, identity| {
        let formatted = Pool::format_with(Arc::clone(run.pmem()), &options(identity).overwrite(), |pool| {
            try_set(pool, "new", identity.into(), identity.into())?;
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
                Err(error) => check_refusal(&error, crash.acked().len() < 2),
            },
        );
    }
}

/// The killed growth may have erased the backup inside the region, magic included, but not durably.
#[test]
fn format_after_killed_growth_is_atomic() {
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
            Err(error) => check_refusal(&error, crash.acked().is_empty()),
        },
    );
}

/// The data of the pool that both processes format over contains the backup of an older pool. A process that is killed while it erases that
/// backup must leave it detectable for the next one.
#[test]
fn inner_backup_stays_erased_after_killed_format() {
    const INNER: u64 = POOL_BYTES - 8192;
    let before = {
        let backup = header_of(INNER, 1);
        let sim = Arc::new(SimPmem::new(POOL_BYTES));
        set(&Pool::format(Arc::clone(&sim), &options(2)).unwrap(), "counter", 1, 1);
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
            Err(error) => check_refusal(&error, crash.acked().len() < 2),
        },
    );
}

/// A pool, whose observable state is its length and the value of each root.
struct PoolSubject;

#[derive(Clone, Copy, Debug)]
enum Op {
    Set(usize, u64),
    Remove(usize),
    Extend,
    Reopen,
    ReopenReadOnlyFirst,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Subject for PoolSubject {
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
            Op::Set(name, value) => try_set(&pool, NAMES[name], value, value)?,
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

impl Oracle for PoolSubject {
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

fn op(rng: &mut Rng) -> Op {
    let name = rng.usize(0..3);
    match rng.u64(0..9) {
        0..4 => Op::Set(name, rng.u64(0..4)),
        4..6 => Op::Remove(name),
        6 => Op::Extend,
        7 => Op::Reopen,
        _ => Op::ReopenReadOnlyFirst,
    }
}

/// Runs sequences of two to five operations, with kills and crashes at every point, and two choices at each.
#[test]
fn random_sequences_survive_kills_and_crashes() {
    for seed in crate::random::seeds(if crate::is_deep() { 200 } else { 50 }) {
        let mut rng = Rng::with_seed(seed);
        let ops: Vec<Op> = (0..rng.u64(2..6)).map(|_| op(&mut rng)).collect();
        let explorer = Explorer::new(Model::Px86Line).seed(seed).kills(1).crashes(1);
        let explorer = explorer.choices_per_point(2).nested_choices_per_point(1);
        Sequences::new(PoolSubject, LONGER_BYTES).unwrap().explorer(explorer).check(&ops);
    }
}

/// Runs fewer and shorter sequences, with a second kill and a crash of the recovery, under every model.
#[test]
fn random_sequences_survive_two_kills_and_crashes() {
    for seed in 0..4 {
        for model in Model::ALL {
            let mut rng = Rng::with_seed(seed ^ 0x5eed);
            let ops: Vec<Op> = (0..rng.u64(2..5)).map(|_| op(&mut rng)).collect();
            let explorer = Explorer::new(model).seed(seed).kills(2).crashes(2).recoveries(3000);
            let explorer = explorer.choices_per_point(3).nested_choices_per_point(2);
            Sequences::new(PoolSubject, LONGER_BYTES).unwrap().explorer(explorer).check(&ops);
        }
    }
}
