//! A fence fails in the middle of a change. The pool is opened again in the same process, or used on; what it then shows and
//! acknowledges is there after a crash.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Domain, FenceError, Pmem, Pool, PoolOptions, RootError, Uuid};
use pm_crashsim::{Crash, Explorer, Image, Model, Run, SimPmem};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const POOL_BYTES: u64 = 1 << 15;
const LONGER_BYTES: u64 = POOL_BYTES + 8192;

/// A region of which one fence fails.
struct Failing {
    sim: Arc<SimPmem>,
    fences_left: AtomicU64,
}

impl Pmem for Failing {
    fn len_bytes(&self) -> u64 {
        self.sim.len_bytes()
    }
    fn domain(&self) -> Domain {
        self.sim.domain()
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.sim.load(offset, out);
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.sim.store(offset, bytes);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.sim.store_nt(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.sim.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.sim.store_u64(offset, value);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.sim.store_u128(offset, value);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.sim.compare_exchange_u64(offset, current, new)
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.sim.flush(offset, len_bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        match self.fences_left.fetch_sub(1, SeqCst) {
            0 => {
                // As a new process: nothing that was flushed is promised.
                self.sim.kill();
                Err(FenceError::Poisoned)
            }
            _ => self.sim.fence(),
        }
    }
}

fn options() -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0)
}

fn set<P: Pmem>(pool: &Pool<P>, name: &str, value: u64) -> Result<(), RootError> {
    pool.scope(|pm| {
        let place = pm.claim(pool.data().start + 64 * value)?;
        pm.set_root_in_flight(name, pm.flush(pm.write(place, &value))).map(drop)
    })
}

fn get<P: Pmem>(pool: &Pool<P>, name: &str) -> u64 {
    pool.scope(|pm| pm.root::<u64>(name).unwrap().map_or(0, |link| pm.read(link).unwrap()))
}

type State = (u64, u64, u64);

fn state<P: Pmem>(pool: &Pool<P>) -> State {
    (pool.pool_bytes(), get(pool, "a"), get(pool, "b"))
}

/// A pool in a longer region, with `a`; its backup corrupted or not.
fn image(is_corrupted: bool) -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    set(&Pool::format(Arc::clone(&sim), &options()).unwrap(), "a", 1).unwrap();
    let mut bytes = sim.to_image().to_bytes();
    bytes.resize(usize::try_from(LONGER_BYTES).unwrap(), 0);
    if is_corrupted {
        bytes[64] ^= 1;
    }
    Image::from_bytes(bytes)
}

/// Whether there was a failure. What comes after it in the same process is ignored, but for what is acknowledged.
fn change(pool: &mut Pool<Failing>, number: u64) -> bool {
    let changed = match number {
        0 => set(pool, "a", 2).is_ok(),
        1 => set(pool, "b", 3).is_ok(),
        2 => pool.remove_root("a").is_ok(),
        _ => pool.extend().is_ok(),
    };
    !changed
}

#[test]
fn what_is_shown_after_a_failed_fence_and_another_opening_is_durable() {
    let mut failures = 0;
    for is_corrupted in [false, true] {
        for number in 0..4 {
            for fences in 0..9 {
                let failed = std::sync::atomic::AtomicBool::new(false);
                let operation = |run: &Run<State>| {
                    let failing =
                        Failing { sim: Arc::clone(run.pmem()), fences_left: AtomicU64::new(fences) };
                    failed.store(
                        match Pool::attach(failing) {
                            Ok(mut pool) => change(&mut pool, number),
                            Err(_) => true,
                        },
                        SeqCst,
                    );
                    run.ack(state(&Pool::attach(Arc::clone(run.pmem())).unwrap()));
                };
                let check = |crash: &Crash<State>| {
                    let found =
                        state(&Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?);
                    match crash.acked().last() {
                        Some(shown) if *shown != found => Err(format!("{found:?} after {shown:?}")),
                        _ => Ok(()),
                    }
                };
                let explorer =
                    Explorer::new(Model::Px86Line).crashes(1).choices_per_point(64).recoveries(400);
                explorer.check(&image(is_corrupted), operation, check);
                failures += u64::from(failed.load(SeqCst));
            }
        }
    }
    assert!(failures > 20, "{failures}");
}

/// The pool goes on after the failure, with the other kinds of changes.
#[test]
fn what_is_acknowledged_after_a_failed_fence_is_durable() {
    for (first, second) in (0..4).flat_map(|first| (0..4).map(move |second| (first, second))) {
        for fences in 1..6 {
            let operation = |run: &Run<State>| {
                let failing = Failing { sim: Arc::clone(run.pmem()), fences_left: AtomicU64::new(fences) };
                let mut pool = Pool::attach(failing).unwrap();
                if change(&mut pool, first) && !change(&mut pool, second) {
                    run.ack(state(&pool));
                }
            };
            let check = |crash: &Crash<State>| {
                let found =
                    state(&Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?);
                let Some(shown) = crash.acked().last() else { return Ok(()) };
                // What the first one wanted may be there or not.
                let is_same = match second {
                    0 => found.1 == 2,
                    1 => found.2 == 3,
                    2 => found.1 == 0,
                    _ => found.0 == LONGER_BYTES,
                };
                if is_same { Ok(()) } else { Err(format!("{found:?} after {shown:?}: {first}, {second}")) }
            };
            let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(64).recoveries(400);
            explorer.check(&image(false), operation, check);
        }
    }
}
