//! A pool that grows while one line of a header is lost, by a fault of the medium, at every crash and kill.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Pool, PoolError, PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Faults, Image, Model, Run, SimPmem};
use std::sync::Arc;

const POOL_BYTES: u64 = 1 << 15;
const LONGER_BYTES: u64 = POOL_BYTES + 8192;

type SimPool = Pool<Arc<SimPmem>>;

fn options(identity: u8) -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([identity; 16])).created_s(0)
}

fn set(pool: &SimPool, name: &str, at: u64, value: u64) {
    pool.scope(|pm| {
        let place = pm.claim(at).unwrap();
        // teeth(flush): the image is of the caches, too
        pm.set_root_in_flight(name, pm.flush(pm.write(place, &value))).unwrap();
    });
}

fn get(pool: &SimPool, name: &str) -> Option<u64> {
    pool.scope(|pm| pm.root::<u64>(name).unwrap().map(|link| pm.read(link).unwrap()))
}

fn longer_image() -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    set(&Pool::format(Arc::clone(&sim), &options(1)).unwrap(), "counter", 8192, 7);
    let mut bytes = sim.to_image().to_bytes();
    bytes.resize(usize::try_from(LONGER_BYTES).unwrap(), 0);
    Image::from_bytes(bytes)
}

fn whole(crash: &Crash<()>) -> Result<(), String> {
    match Pool::attach(Arc::clone(crash.pmem())) {
        Ok(pool) => {
            let is_right = get(&pool, "counter") == Some(7) && pool.uuid() == Uuid::from_bytes([1; 16]);
            let is_long = pool.pool_bytes() == LONGER_BYTES;
            match (is_right, is_long, crash.acked().len()) {
                (true, true, _) | (true, false, 0) => Ok(()),
                other => Err(format!("{other:?}, faults {:?}", crash.faults())),
            }
        }
        // Two copies lost, one by the fault and one by the crash.
        Err(PoolError::HeadersDamaged { .. }) => Ok(()),
        Err(error) => Err(format!("{error}, faults {:?}", crash.faults())),
    }
}

#[test]
fn growth_with_any_line_of_a_header_lost_is_never_no_pool() {
    let grow = |run: &Run<()>| {
        Pool::attach(Arc::clone(run.pmem())).unwrap().extend().unwrap();
        run.ack(());
    };
    for place in [0..4096, POOL_BYTES - 4096..POOL_BYTES, LONGER_BYTES - 4096..LONGER_BYTES] {
        for faults in [Faults::none().poison(1), Faults::none().flips(1)] {
            let faults = faults.within(place.start..place.start + 128).within(place.end - 64..place.end);
            let explorer = Explorer::new(Model::Px86Line)
                .crashes(1)
                .choices_per_point(512)
                .faults(faults)
                .recoveries(20_000);
            let coverage = explorer.check(&longer_image(), grow, whole);
            println!("{place:?}: {coverage}");
        }
    }
}

#[test]
fn growth_killed_with_any_line_of_a_header_lost_is_never_no_pool() {
    let grow = |run: &Run<()>| {
        Pool::attach(Arc::clone(run.pmem())).unwrap().extend().unwrap();
        run.ack(());
    };
    for place in [0..4096, POOL_BYTES - 4096..POOL_BYTES, LONGER_BYTES - 4096..LONGER_BYTES] {
        let faults =
            Faults::none().poison(1).within(place.start..place.start + 128).within(place.end - 64..place.end);
        let explorer = Explorer::new(Model::Px86Line)
            .crashes(1)
            .kills(1)
            .choices_per_point(64)
            .nested_choices_per_point(16)
            .faults(faults)
            .recoveries(10_000);
        let coverage = explorer.check(&longer_image(), grow, whole);
        println!("{place:?}: {coverage}");
    }
}
