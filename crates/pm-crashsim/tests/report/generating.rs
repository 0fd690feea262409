//! Tests made of failures: they compile, and fail as the failure did.

use crate::common::*;
use crate::programs::*;
use std::{env, fs};

/// Set to write the generated files anew.
const BLESS: &str = "PM_CRASHSIM_BLESS";

/// Asserts that the file is what is generated, but for the lines by which its tests are known to fail.
#[track_caller]
fn assert_generated(failure: &Failure, name: &str, file: &str) {
    let expected = format!("#[test]\n#[should_panic(expected = {:?})]", failure.message);
    let generated = failure.to_test().unwrap().replace("#[test]", &expected);
    if env::var_os(BLESS).is_some() {
        fs::write(format!("{}/tests/report/generated/{name}.rs", env!("CARGO_MANIFEST_DIR")), generated)
            .unwrap();
    } else {
        assert_eq!(generated, file, "{BLESS}=1 writes it anew");
    }
}

#[test]
fn failure_becomes_tests_that_call_the_check_by_path() {
    let failure = Explorer::default().explore(&region(), unordered, published).unwrap_err();
    assert_generated(&failure, "order", include_str!("generated/order.rs"));
}

#[test]
fn failure_in_recovery_becomes_tests() {
    let failure = Explorer::default().explore(&two_accounts(), transfer, recovers_carelessly).unwrap_err();
    assert_generated(&failure, "recovery", include_str!("generated/recovery.rs"));
}

/// Every kind of call, and a start and an end that are not empty.
#[test]
fn every_call_is_repeated() {
    let failure = Explorer::new(Model::Px86Loc)
        .strict_ack(true)
        .explore(&two_accounts(), all_calls, never)
        .unwrap_err();
    assert_generated(&failure, "calls", include_str!("generated/calls.rs"));
}

#[test]
fn closures_leave_gaps_to_fill_in() {
    let operation = |run: &Run<u64>| -> Result<(), FenceError> {
        run.pmem().store_u64(SLOT, 7);
        run.ack(7);
        Ok(())
    };
    let check = |crash: &Crash<'_, u64>| match (crash.acked(), crash.pmem().load_u64(SLOT)) {
        ([7], 0) => Err("lost"),
        _ => Ok(()),
    };
    let failure = Explorer::default().explore(&region(), operation, check).unwrap_err();
    insta::assert_snapshot!(failure.to_test().unwrap());
}

#[test]
fn run_of_several_threads_is_left_out() {
    let operation = |run: &Run<()>| {
        std::thread::scope(|scope| {
            scope.spawn(|| run.pmem().store_u64(SLOT, 7));
        });
        run.pmem().store_u64(FLAG, 1);
    };
    let failure = Explorer::default().explore(&region(), operation, published).unwrap_err();
    let source = failure.to_test().unwrap();
    assert!(source.contains("one of several threads") && !source.contains("Run"), "{source}");
}

#[test]
fn failure_without_a_crash_makes_no_test() {
    let failure = Explorer::default().explore(&region(), |_: &Run<()>| Err("no"), published).unwrap_err();
    assert_eq!(failure.to_test(), None);
}
