//! Pools are made on file systems that have no nameless files, and whose renames take no flags: NFS, 9p, most of FUSE. The kernel
//! answers for these here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use answers::{answer, error};
use pm_core::{OpenError, Pool, PoolError, PoolOptions, RegionOptions};

/// `__O_TMPFILE` in the flags of openat(2).
const TMPFILE: u32 = 0o20_000_000;

fn pool_is_made_once(has_rename_flags: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pm");
    // In a thread: the answers are for that alone.
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
fn pool_is_made_where_files_cannot_be_nameless() {
    pool_is_made_once(true);
}

#[test]
fn pool_is_made_where_renames_take_no_flags_either() {
    pool_is_made_once(false);
}
