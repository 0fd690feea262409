//! A heap that a child of fork(2) inherits: the parent owns it, and the child does not close it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Heap, HeapError, HeapOptions};
use pm_core::{Pmem, PoolError, Region, RegionOptions};
use std::mem::ManuallyDrop;
use std::process::Command;

const LEN: usize = 1 << 20;

/// The environment variable that is set in process 1 of a PID namespace.
const IS_FIRST: &str = "PM_ALLOC_TEST_IS_FIRST";

/// Forks. Returns whether `check` is true in the child.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has one thread, which waits for no other, and exits before the destructors of the parent's values would run.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: no memory of ours is touched. A child that deadlocks is killed.
        unsafe { libc::alarm(10) };
        let is_true = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!is_true)) }
    }
    let mut status = 0;
    // SAFETY: waits for the child, and stores to the integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Runs `test` again as process 1 of a PID namespace. That process runs `body`, and its next child is in another namespace, where the child is
/// process 1, too.
fn with_equal_pid_of_child(test: &str, body: impl FnOnce()) {
    if std::env::var_os(IS_FIRST).is_some() {
        assert_eq!(std::process::id(), 1);
        // SAFETY: no memory is touched.
        let unshared = unsafe { libc::unshare(libc::CLONE_NEWPID) };
        assert_eq!(unshared, 0, "{}", std::io::Error::last_os_error());
        return body();
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork"]);
    // SAFETY: no memory is touched.
    if unsafe { libc::geteuid() } != 0 {
        // Without root privileges, a PID namespace needs a user namespace.
        command.arg("--map-root-user");
    }
    command.arg("--").arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    let output = command.env(IS_FIRST, "").output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    assert!(out.contains("1 passed"), "{out}");
}

/// Some heaps are in regions that the child inherits, others are not. The child drops one of each kind, and closes the other.
fn assert_child_stores_nothing(is_pid_expected: impl Fn(u32, u32) -> bool) {
    let parent = std::process::id();
    let options = HeapOptions::new().lanes(1).lane_entries(16).chunk_bytes(4096);
    let kept = [true, true, false, false].map(|is_kept| {
        let region = RegionOptions::new();
        if is_kept { region.keep_on_fork() } else { region }.anonymous(LEN as u64).unwrap()
    });
    let mut heaps = kept.each_ref().map(|region| {
        let heap = Heap::format(region, &options).unwrap();
        heap.transaction(|tx| tx.alloc(&1_u64).map(drop)).unwrap();
        ManuallyDrop::new(heap)
    });
    let bytes = |region: &Region| {
        let mut bytes = vec![0; LEN];
        region.load(0, &mut bytes);
        bytes
    };
    let before = kept.each_ref().map(bytes);
    assert!(in_child(|| {
        let is_refused = |heap: &mut ManuallyDrop<Heap<&Region>>| {
            // SAFETY: this process takes each value only once, and the parent has its own copy.
            let heap = unsafe { ManuallyDrop::take(heap) };
            matches!(heap.close(), Err(HeapError::Pool(PoolError::InUse)))
        };
        let [dropped, closed, dropped_unmapped, closed_unmapped] = &mut heaps;
        for heap in [dropped, dropped_unmapped] {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(heap) };
        }
        is_refused(closed) && is_refused(closed_unmapped) && is_pid_expected(parent, std::process::id())
    }));
    for ((heap, region), before) in heaps.into_iter().zip(&kept).zip(before) {
        assert!(bytes(region) == before, "the child stores nothing");
        ManuallyDrop::into_inner(heap).close().unwrap();
        assert!(bytes(region) != before, "the parent closes the log");
    }
}

#[test]
fn child_that_drops_or_closes_heap_stores_nothing() {
    assert_child_stores_nothing(|parent, child| parent != child);
}

#[test]
fn child_with_pid_of_parent_stores_nothing() {
    with_equal_pid_of_child("child_with_pid_of_parent_stores_nothing", || {
        assert_child_stores_nothing(|parent, child| parent == child)
    });
}
