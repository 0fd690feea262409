//! Changes of a disk's geometry, with a kill between two of them, and crashes; also with one line of the descriptors lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Pool, PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Faults, Model, Run, SimPmem};
use pmbd::disk::{format, read_geometry, write_geometry};
use pmbd::{Geometry, SectorSize};
use std::sync::Arc;

fn geometry(sectors: u64) -> Geometry {
    Geometry::new(format::SMALL_START, sectors * 512, SectorSize::B512).unwrap()
}

fn change(run: &Run<u64>, sectors: u64) {
    let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
    write_geometry(&pool, geometry(sectors)).unwrap();
    run.ack(sectors);
}

#[test]
fn last_acknowledged_change_survives_kills_and_crashes() {
    let options = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let sim = Arc::new(SimPmem::new(1 << 16));
    write_geometry(&Pool::format(Arc::clone(&sim), &options).unwrap(), geometry(1)).unwrap();
    let check = |crash: &Crash<u64>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        let found = match read_geometry(&pool) {
            Ok(geometry) => geometry.capacity_bytes() / 512,
            Err(_) if !crash.faults().is_empty() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let last = crash.acked().last().copied().unwrap_or(1);
        if found >= last && found <= 4 { Ok(()) } else { Err(format!("{found} after {:?}", crash.acked())) }
    };
    let explorer = |faults: Faults| {
        Explorer::new(Model::Px86Line)
            .crashes(1)
            .kills(1)
            .choices_per_point(1 << 10)
            .faults(faults)
            .recoveries(100_000)
    };
    for faults in [Faults::none(), Faults::none().poison(1).within(8192..8192 + 128)] {
        let first = |run: &Run<u64>| {
            change(run, 2);
            change(run, 3);
        };
        let coverage =
            explorer(faults).check_restarted(&sim.to_image(), first, |run: &Run<u64>| change(run, 4), check);
        println!("{coverage}");
    }
}
