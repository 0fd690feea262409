//! A system call fails while a heap grows in use: the allocation succeeds all the same, or the heap has a reason why it does not grow, and later it can.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::Pmem as _;
use pm_syscall_faults::{End, Fault, Injection, Outcome, Traced, counting, sweep};
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
const MAX: u64 = 4 * MIB;
const IN: &str = "PM_ALLOC_TEST_GROWTH_FAULTS";

fn options() -> HeapOptions {
    HeapOptions::new().chunk_bytes(16 << 10).lanes(2)
}

fn alloc(heap: &Heap) -> Result<(), TxError> {
    heap.transaction(|tx| tx.alloc_uninit::<u8>(8000).map(drop))
}

/// Allocates until the pool is longer than `bytes`, or nothing can be allocated. Returns whether it is longer.
fn grow_beyond(heap: &Heap, bytes: u64) -> Result<bool, TxError> {
    while heap.pmem().len_bytes() <= bytes {
        alloc(heap)?;
    }
    Ok(true)
}

fn in_child(dir: &Path) -> ! {
    let path = dir.join("heap.pm");
    let heap = Heap::create(&path, MIB, &options()).unwrap();
    while alloc(&heap).is_ok() {}
    drop(heap);
    let heap = Heap::open(&path, &options().max_bytes(MAX)).unwrap();
    let blocks = heap.blocks();
    counting(true);
    let first = alloc(&heap);
    counting(false);
    let reason = heap.growth_error();
    let is_poisoned = heap.pmem().fence().is_err() || heap.checkpoint().is_err();
    if let Err(error) = &first {
        assert!(is_poisoned || reason.is_some(), "no reason: {error:?}");
    }
    if !is_poisoned {
        let at = heap.pmem().len_bytes();
        let again = grow_beyond(&heap, at);
        let why = heap.growth_error();
        assert!(
            again.is_ok() || why.is_some(),
            "no reason later: {again:?}, at {at}; first {first:?} {reason:?}"
        );
        assert!(heap.check().is_clean());
    }
    let found = heap.blocks();
    assert!(blocks.iter().all(|block| found.binary_search(block).is_ok()));
    drop(heap);
    std::process::exit(i32::from(first.is_err()));
}

fn run(dir: &Path, injection: Injection) -> Outcome {
    let mut stderr = tempfile::tempfile().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["growth_has_a_reason_to_fail", "--exact", "--nocapture"]).env(IN, dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr.try_clone().unwrap());
    let outcome = Traced::new(command, injection).between_marks().run();
    let is_killed = injection.fault == Fault::Kill && outcome.hit.is_some();
    let is_expected = match outcome.end {
        End::Exit(0 | 1) => !is_killed,
        End::Signal(signal) => is_killed && signal == libc::SIGKILL,
        _ => false,
    };
    let mut text = String::new();
    stderr.rewind().unwrap();
    stderr.read_to_string(&mut text).unwrap();
    assert!(is_expected, "in {}: {outcome}: {text}", dir.display());
    outcome
}

#[test]
fn growth_has_a_reason_to_fail() {
    if let Some(dir) = std::env::var_os(IN) {
        in_child(Path::new(&dir));
    }
    sweep(
        "growth_has_a_reason_to_fail",
        &[Fault::Error(libc::EIO), Fault::Error(libc::ENOMEM)],
        1,
        |injection| {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let outcome = run(dir.path(), injection);
            let heap = Heap::open(dir.path().join("heap.pm"), &options());
            assert!(heap.unwrap().check().is_clean(), "{outcome}");
            outcome
        },
    );
}
