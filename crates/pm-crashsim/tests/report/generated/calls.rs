//! Crashes that were not recovered from, as pm-crashsim found them.
//!
//! never right

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Explorer, Model, Run, SimPmem};

/// Recovery from what the crash left.
#[test]
#[should_panic(expected = "never right")]
fn recovers_from_what_the_crash_left() {
    let left = SimPmem::new(4096);
    left.store_u64(0x40, 0x123456789abc);
    left.store_u64(0x60, 0x3020100000000);
    left.store_u64(0x80, 0x64);
    left.store_u64(0x200, 0x505050505050505);
    left.store_u64(0x208, 0x505050505050505);
    left.store_u64(0x210, 0x505050505050505);
    left.store_u64(0x2b8, 0x909090900000000);
    left.store_u64(0x2c0, 0x909090909090909);
    left.store_u64(0x2c8, 0x909090909090909);
    let acked: &[()] = &[()];
    Explorer::new(Model::Px86Loc).strict_ack(true).recover(&left.to_image(), acked, crate::programs::never).unwrap();
}

/// The run, call by call, and the crash of it.
#[test]
#[should_panic(expected = "never right")]
fn recovers_from_the_crash() {
    let start = SimPmem::new(4096);
    start.store_u64(0x40, 0x64);
    start.store_u64(0x80, 0x64);
    let operation = |run: &Run<()>| -> Result<(), FenceError> {
        let pmem = run.pmem();
        // crates/pm-crashsim/tests/report/programs.rs:147:10
        pmem.store(0x64, &[1, 2, 3]);
        // crates/pm-crashsim/tests/report/programs.rs:148:10
        pmem.store(0x2bc, &[9; 20]);
        // crates/pm-crashsim/tests/report/programs.rs:149:10
        pmem.store_nt(0x200, &[5; 24]);
        // crates/pm-crashsim/tests/report/programs.rs:150:10
        pmem.flush(0x40, 64);
        // crates/pm-crashsim/tests/report/programs.rs:151:10
        pmem.fence()?;
        // crates/pm-crashsim/tests/report/programs.rs:152:9
        run.ack(());
        // crates/pm-crashsim/tests/report/programs.rs:153:10
        pmem.compare_exchange_u64(0x40, pmem.load_u64(0x40), 0x123456789abc).unwrap();
        // crates/pm-crashsim/tests/report/programs.rs:154:10
        pmem.clflush(0x40, 8);
        // The crash.
        // crates/pm-crashsim/tests/report/programs.rs:155:10
        pmem.mfence();
        // crates/pm-crashsim/tests/report/programs.rs:156:10
        pmem.store_u64(0x320, 0x1);
        Ok(())
    };
    let explorer = Explorer::new(Model::Px86Loc).strict_ack(true).replay("px86-loc:aa47834a:8-");
    explorer.explore(&start.to_image(), operation, crate::programs::never).unwrap();
}
