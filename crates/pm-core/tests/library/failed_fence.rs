//! A fence fails during a change of a pool. The pool is opened again in the same process, or used further with the same handle. The state that the
//! pool then shows or acknowledges survives a crash.

use crate::pools::{LONGER_BYTES, POOL_BYTES, get, longer, options, set, try_set};
use pm_core::{FenceError, Pmem, Pool};
use pm_crashsim::{Crash, Explorer, Image, Model, Run, SimPmem};
use pm_testkit::{Hook, Hooked};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Fails one fence, after this number of successful ones.
#[derive(Debug)]
struct FailsOnce(AtomicU64);

impl Hook<Arc<SimPmem>> for FailsOnce {
    fn fence(&self, sim: &Arc<SimPmem>) -> Result<(), FenceError> {
        match self.0.fetch_sub(1, SeqCst) {
            0 => {
                // As at a kill, the flushes before the failed fence no longer count.
                sim.kill();
                Err(FenceError::Poisoned)
            }
            _ => sim.fence(),
        }
    }
}

type Failing = Hooked<Arc<SimPmem>, FailsOnce>;

type State = (u64, u64, u64); // the pool's length, and the values of `a` and `b`, 0 if absent

fn state<P: Pmem>(pool: &Pool<P>) -> State {
    (pool.pool_bytes(), get(pool, "a").unwrap_or(0), get(pool, "b").unwrap_or(0))
}

/// A pool with the root `a` in a longer region. If `is_corrupted`, its header at the start is corrupted.
fn image(is_corrupted: bool) -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    set(&Pool::format(Arc::clone(&sim), &options(1)).unwrap(), "a", 1, 1);
    let mut bytes = longer(&sim.to_image(), LONGER_BYTES).to_bytes();
    if is_corrupted {
        bytes[64] ^= 1;
    }
    Image::from_bytes(bytes)
}

/// Makes the change with this number. Returns whether it failed.
fn change(pool: &mut Pool<Failing>, number: u64) -> bool {
    let changed = match number {
        0 => try_set(pool, "a", 2, 2).is_ok(),
        1 => try_set(pool, "b", 3, 3).is_ok(),
        2 => pool.remove_root("a").is_ok(),
        _ => pool.extend().is_ok(),
    };
    !changed
}

#[test]
fn state_after_failed_fence_and_reopening_is_durable() {
    let mut failures = 0;
    for is_corrupted in [false, true] {
        for number in 0..4 {
            for fences in 0..9 {
                let failed = std::sync::atomic::AtomicBool::new(false);
                let operation = |run: &Run<State>| {
                    let failing: Failing =
                        Hooked::new(Arc::clone(run.pmem()), FailsOnce(AtomicU64::new(fences)));
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
                        Some(shown) if *shown != found => Err(format!("found {found:?} after {shown:?}")),
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
    assert!(failures > 20, "only {failures} failures");
}

/// After each kind of change has failed, each kind is made with the same handle.
#[test]
fn acknowledged_change_after_failed_fence_is_durable() {
    for (first, second) in (0..4).flat_map(|first| (0..4).map(move |second| (first, second))) {
        for fences in 1..6 {
            let operation = |run: &Run<State>| {
                let failing: Failing = Hooked::new(Arc::clone(run.pmem()), FailsOnce(AtomicU64::new(fences)));
                let mut pool = Pool::attach(failing).unwrap();
                if change(&mut pool, first) && !change(&mut pool, second) {
                    run.ack(state(&pool));
                }
            };
            let check = |crash: &Crash<State>| {
                let found =
                    state(&Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?);
                let Some(shown) = crash.acked().last() else { return Ok(()) };
                // The failed change may be in effect or not.
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
