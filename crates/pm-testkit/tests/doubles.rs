//! The doubles themselves: a test that trusts a wrong one passes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::Pmem as _;
use pm_testkit::{SampledPmem, run_and_kill};
use std::ffi::OsStr;
use std::panic::catch_unwind;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

const CHILD: &str = "PM_TESTKIT_ABORTS";

/// What must not happen: a child that ends by a signal of its own, because it aborts or accesses memory that it has not, is taken for one that was
/// killed, and a test of kills passes over a crash of the code under test.
#[test]
fn child_that_aborts_was_not_killed() {
    if std::env::var_os(CHILD).is_some() {
        std::process::abort();
    }
    let variables = [(CHILD, OsStr::new("1"))];
    let killed =
        catch_unwind(|| run_and_kill("child_that_aborts_was_not_killed", &variables, Duration::from_secs(2)));
    assert!(killed.is_err(), "an abort passes for a kill");
}

/// What must not happen: of two threads that exchange the same word, both succeed. The code under test then seems to lose changes, or hides that it does.
#[test]
fn exchange_of_a_sampled_word_is_atomic() {
    const COUNT: u64 = 50_000;
    const THREADS: u64 = 4;
    // A loss is rare if the threads have one processor.
    for round in 0..40 {
        let pmem = SampledPmem::new(4096);
        let start = Barrier::new(4);
        let add = || {
            start.wait();
            for _ in 0..COUNT {
                while let word = pmem.load_u64(0)
                    && pmem.compare_exchange_u64(0, word, word + 1).is_err()
                {}
            }
        };
        thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(add))));
        assert_eq!(pmem.load_u64(0), THREADS * COUNT, "round {round}");
    }
}
