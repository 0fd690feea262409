//! Crashes that were not recovered from, as pm-crashsim found them.
//!
//! Some(0) was found, where only None or Some(7) is allowed

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Explorer, Model, Run, SimPmem};

/// Recovery from what the crash left.
#[test]
#[should_panic(expected = "Some(0) was found, where only None or Some(7) is allowed")]
fn recovers_from_what_the_crash_left() {
    let left = SimPmem::new(8192);
    left.store_u64(0x0, 0x1);
    let acked: &[()] = &[];
    Explorer::new(Model::Px86Line).recover(&left.to_image(), acked, crate::programs::published).unwrap();
}

/// The run, call by call, and the crash of it.
#[test]
#[should_panic(expected = "Some(0) was found, where only None or Some(7) is allowed")]
fn recovers_from_the_crash() {
    let start = SimPmem::new(8192);
    let operation = |run: &Run<()>| -> Result<(), FenceError> {
        let pmem = run.pmem();
        // crates/pm-crashsim/tests/report/programs.rs:16:10
        pmem.store_u64(0x400, 0x7);
        // crates/pm-crashsim/tests/report/programs.rs:17:10
        pmem.flush(0x400, 8);
        // crates/pm-crashsim/tests/report/programs.rs:18:10
        pmem.store_u64(0x0, 0x1);
        // crates/pm-crashsim/tests/report/programs.rs:19:10
        pmem.flush(0x0, 8);
        // The crash.
        // crates/pm-crashsim/tests/report/programs.rs:20:10
        pmem.fence()?;
        // crates/pm-crashsim/tests/report/programs.rs:21:9
        run.ack(());
        Ok(())
    };
    let explorer = Explorer::new(Model::Px86Line).replay("px86-line:6ccc2f61:4+0");
    explorer.explore(&start.to_image(), operation, crate::programs::published).unwrap();
}
