//! Growth with a fault of the medium: one line of a header is lost, at every crash and kill.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod pools;

use core::ops::Range;
use pm_core::{Pool, PoolError, Uuid};
use pm_crashsim::{Crash, Explorer, Faults, Image, Model, Run, SimPmem};
use pools::{LONGER_BYTES, POOL_BYTES, get, longer, options, set};
use std::sync::Arc;

fn longer_image() -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    set(&Pool::format(Arc::clone(&sim), &options(1)).unwrap(), "counter", 0, 7);
    longer(&sim.to_image(), LONGER_BYTES)
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
        Err(PoolError::HeadersCorrupted { .. }) => Ok(()),
        Err(error) => Err(format!("{error}, faults {:?}", crash.faults())),
    }
}

/// The lines of a header's page that are not zero.
const LINES: [Range<u64>; 3] = [0..64, 64..128, 4032..4096];

/// Grows the pool with faults in these parts of each page that has a header.
fn explore(explorer: &Explorer, faults: &Faults, parts: &[Range<u64>]) {
    let grow = |run: &Run<()>| {
        Pool::attach(Arc::clone(run.pmem())).unwrap().extend().unwrap();
        run.ack(());
    };
    for page in [0, POOL_BYTES - 4096, LONGER_BYTES - 4096] {
        let within = |faults: Faults, part: &Range<u64>| faults.within(page + part.start..page + part.end);
        let faults = parts.iter().fold(faults.clone(), within);
        let coverage = explorer.clone().faults(faults).check(&longer_image(), grow, whole);
        println!("{page}: {coverage}");
    }
}

/// The growth is crashed everywhere.
fn crasher() -> Explorer {
    Explorer::new(Model::Px86Line).crashes(1).choices_per_point(512)
}

/// The growth is killed everywhere, and the next process is crashed. With fewer choices, as they multiply.
fn killer(choices: u64) -> Explorer {
    crasher().kills(1).choices_per_point(choices).nested_choices_per_point(choices / 4)
}

#[test]
fn growth_survives_poisoned_header_line() {
    let faults = Faults::none().poison(1);
    explore(&crasher(), &faults, &LINES);
    explore(&killer(64), &faults, &LINES);
}

#[test]
fn growth_survives_flipped_header_bit() {
    let faults = Faults::none().flips(1);
    explore(&crasher(), &faults, &LINES);
    // Each bit is a fault: with kills only those of the first line, which holds the magic.
    explore(&killer(4), &faults, &LINES[..1]);
}
