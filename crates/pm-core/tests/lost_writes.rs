//! A failed write-back, which the kernel reports once, to the first process that syncs.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use pm_core::{Domain, Pmem, Pool, PoolError, PoolOptions, RegionOptions};
use std::path::Path;

/// The reader fails, and a later opening that keeps the pages still learns of the lost writes.
#[test]
fn report_received_by_reader_is_kept() {
    for options in [RegionOptions::new().read_only(), RegionOptions::new().scratch()] {
        // Not in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file.pm");
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                answers::answer(libc::SYS_fdatasync, None, answers::error(libc::EIO));
                assert!(options.open(&path).is_err(), "{options:?}");
            });
            reader.join().unwrap();
        });
        let next = RegionOptions::new().keep_pages(true).open(&path).unwrap();
        assert_eq!(next.domain(), Domain::Page);
        assert!(next.poison_if_writes_were_lost(), "{options:?}");
    }
}

/// An opening that keeps the pages is told of a failed write-back and marks the file; then `other` opens the file. Whether the
/// next opening that keeps the pages still learns of the lost writes.
fn next_learns_of_lost_writes(is_pool: bool, other: impl FnOnce(&Path)) -> bool {
    // Not in memory.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("file.pm");
    if is_pool {
        drop(Pool::create(&path, 1 << 16, &RegionOptions::new(), &PoolOptions::new()).unwrap());
    } else {
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    }
    let keep = RegionOptions::new().keep_pages(true);
    std::thread::scope(|threads| {
        let told = threads.spawn(|| {
            answers::answer(libc::SYS_fdatasync, None, answers::error(libc::EIO));
            keep.open(&path).unwrap();
        });
        told.join().unwrap();
    });
    other(&path);
    let next = keep.open(&path).unwrap();
    assert_eq!(next.domain(), Domain::Page);
    next.poison_if_writes_were_lost()
}

#[test]
fn refused_opening_leaves_the_mark_of_lost_writes() {
    assert!(next_learns_of_lost_writes(true, |_| ()));
    assert!(next_learns_of_lost_writes(true, |path| {
        let refused = Pool::open_with(path, &RegionOptions::new(), |_| Err(PoolError::NotAPool));
        assert!(matches!(refused, Err(PoolError::NotAPool)), "{refused:?}");
    }));
    assert!(next_learns_of_lost_writes(false, |path| {
        let refused = Pool::open(path, &RegionOptions::new());
        assert!(matches!(refused, Err(PoolError::NotAPool)), "{refused:?}");
    }));
    let successful = |path: &Path| drop(Pool::open(path, &RegionOptions::new()).unwrap());
    assert!(!next_learns_of_lost_writes(true, successful), "one that succeeds has removed the mark");
}
