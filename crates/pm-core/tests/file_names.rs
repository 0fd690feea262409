//! Creation on file systems without nameless files, and without flags of renames: NFS, 9p, most of FUSE. A filter of system calls imitates them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use answers::{answer, error};
use pm_core::{OpenError, Pool, PoolError, PoolOptions, RegionOptions};

/// `__O_TMPFILE` in the flags of openat(2).
const TMPFILE: u32 = 0o20_000_000;

fn pool_is_made_once(has_rename_flags: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pm");
    // In a thread, as the filter holds for that thread only.
    std::thread::scope(|threads| {
        let made = threads.spawn(|| {
            answer(libc::SYS_openat, Some((2, TMPFILE)), error(libc::EOPNOTSUPP));
            if !has_rename_flags {
                answer(libc::SYS_renameat2, None, error(libc::EINVAL));
            }
            let create = || Pool::create(&path, 1 << 16, &RegionOptions::new(), &PoolOptions::new());
            drop(create().unwrap());
            assert!(matches!(create(), Err(PoolError::Region(OpenError::Exists { .. }))));
        });
        made.join().unwrap();
    });
    let count = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(count, 1, "no other name is left");
    Pool::open(&path, &RegionOptions::new()).unwrap();
}

#[test]
fn pool_is_created_without_nameless_files() {
    pool_is_made_once(true);
}

#[test]
fn pool_is_created_without_rename_flags() {
    pool_is_made_once(false);
}
