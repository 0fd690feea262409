//! Crashes that were not recovered from, as pm-crashsim found them.
//!
//! [100, 110] was found, where only [100, 100] or [90, 110] is allowed

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Explorer, Model, Run, SimPmem};

/// Recovery from what the crash left.
#[test]
#[should_panic(expected = "[100, 110] was found, where only [100, 100] or [90, 110] is allowed")]
fn recovers_from_what_the_crash_left() {
    let left = SimPmem::new(4096);
    left.store_u64(0x40, 0x64);
    left.store_u64(0x80, 0x6e);
    left.store_u64(0xc0, 0x5a);
    left.store_u64(0xc8, 0x6e);
    let acked: &[()] = &[];
    Explorer::new(Model::Px86Line).recover(&left.to_image(), acked, crate::programs::recovers_carelessly).unwrap();
}

/// The run, call by call, and the crash of it.
#[test]
#[should_panic(expected = "[100, 110] was found, where only [100, 100] or [90, 110] is allowed")]
fn recovers_from_the_crash() {
    let start = SimPmem::new(4096);
    start.store_u64(0x40, 0x64);
    start.store_u64(0x80, 0x64);
    let operation = |run: &Run<()>| -> Result<(), FenceError> {
        let pmem = run.pmem();
        // crates/pm-crashsim/tests/report/programs.rs:109:10
        pmem.store_u64(0xc0, 0x5a);
        // crates/pm-crashsim/tests/report/programs.rs:110:10
        pmem.store_u64(0xc8, 0x6e);
        // crates/pm-crashsim/tests/report/programs.rs:111:10
        pmem.flush(0xc0, 16);
        // crates/pm-crashsim/tests/report/programs.rs:111:10
        pmem.fence()?;
        // crates/pm-crashsim/tests/report/programs.rs:112:10
        pmem.store_u64(0x100, 0x1);
        // crates/pm-crashsim/tests/report/programs.rs:113:10
        pmem.flush(0x100, 8);
        // The crash.
        // crates/pm-crashsim/tests/report/programs.rs:113:10
        pmem.fence()?;
        // crates/pm-crashsim/tests/report/programs.rs:114:9
        run.ack(());
        Ok(())
    };
    let explorer = Explorer::new(Model::Px86Line).replay("px86-line:62a9b7e5:6-/4-0:0");
    explorer.explore(&start.to_image(), operation, crate::programs::recovers_carelessly).unwrap();
}
