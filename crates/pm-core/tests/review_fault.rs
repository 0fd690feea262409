//! What guarded code may do without `unsafe`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::fault::{MediumFault, guarded};
use pm_core::{Pmem, Pool, PoolOptions, RegionOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LEN: u64 = 1 << 20;

fn wait_for(flag: &AtomicBool) -> bool {
    let started = Instant::now();
    while !flag.load(SeqCst) {
        if started.elapsed() > Duration::from_secs(2) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// A scoped thread borrows a local variable, and the scope waits for it: that is all that makes the borrow sound. After a fault
/// the scope is left without waiting, and the variable is gone.
#[test]
fn scoped_thread_ends_before_guarded_returns() {
    static IS_BACK: AtomicBool = AtomicBool::new(false);
    static STORED_LATE: AtomicBool = AtomicBool::new(false);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    let region = RegionOptions::new().create(&path, LEN).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let answer = guarded(|| {
        let local = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let local = &local;
            scope.spawn(move || {
                if wait_for(&IS_BACK) {
                    // The frame of `local` is gone. Only its address is looked at here, for a test must not store there.
                    std::hint::black_box(core::ptr::from_ref(local));
                    STORED_LATE.store(true, SeqCst);
                }
            });
            region.load_u64(8192)
        })
    });
    assert_eq!(answer, Err(MediumFault));
    IS_BACK.store(true, SeqCst);
    assert!(
        !wait_for(&STORED_LATE),
        "a thread goes on with a reference to a variable of a frame that is gone"
    );
}

/// A lock that is held where the fault comes is held for good: any call of the pool that changes a root.
#[test]
fn pool_answers_after_a_guarded_fault() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    let pool = Pool::create(&path, LEN, &RegionOptions::new(), &PoolOptions::new()).unwrap();
    let pool: &'static _ = Box::leak(Box::new(pool));
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    assert_eq!(guarded(|| pool.remove_root("x").is_ok()), Err(MediumFault));
    file.set_len(LEN).unwrap();
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(move || {
        // An error or not, but an answer.
        drop(pool.remove_root("x"));
        IS_DONE.store(true, SeqCst);
    });
    assert!(wait_for(&IS_DONE), "the directory is locked for good");
}
