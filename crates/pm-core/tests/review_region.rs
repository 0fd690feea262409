//! One file, one region for writing at a time, whichever way it is opened.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{OpenError, Pmem, Pool, PoolError, PoolOptions, Region, RegionOptions};
use std::os::fd::{AsFd, OwnedFd};

const LEN: u64 = 1 << 20;

/// A lock of the open file description does not tell two descriptors of it apart.
fn duplicate(region: &Region) -> OwnedFd {
    region.file().as_fd().try_clone_to_owned().unwrap()
}

#[test]
fn file_of_an_open_region_is_not_opened_a_second_time() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    let region = RegionOptions::new().create(&path, LEN).unwrap();
    assert!(matches!(RegionOptions::new().open(&path), Err(OpenError::Busy { .. })));
    let second = RegionOptions::new().open_file(duplicate(&region), &path);
    assert!(matches!(second, Err(OpenError::Busy { .. })), "two regions store to one file: {second:?}");
}

#[test]
fn two_pools_of_one_descriptor_do_not_lose_each_others_roots() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    let first = Pool::create(&path, LEN, &RegionOptions::new(), &PoolOptions::new()).unwrap();
    let Ok(second) = RegionOptions::new().open_file(duplicate(first.pmem()), &path) else { return };
    let mut second = Pool::attach(second).unwrap();
    // The second one grows the pool; the first one knows nothing of it, and grows it too.
    second.grow(2 * LEN).unwrap();
    let at = second.data().end - 64;
    second.scope(|pm| {
        let value = pm.write(pm.claim(at).unwrap(), &7_u64);
        pm.set_root_in_flight("acknowledged", pm.flush(value)).unwrap();
    });
    let mut first = first;
    first.grow(2 * LEN - 4096).unwrap();
    drop((first, second));
    let pool = Pool::open(&path, &RegionOptions::new());
    let found = pool.map(|pool| pool.scope(|pm| pm.root::<u64>("acknowledged").map(|link| link.is_some())));
    assert!(matches!(found, Ok(Ok(true))), "{found:?}");
}

/// The lock of the first one ends with the second one.
#[test]
fn dropping_a_region_leaves_the_lock_of_another_one() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    let first = RegionOptions::new().create(&path, LEN).unwrap();
    drop(RegionOptions::new().read_only().open_file(duplicate(&first), &path));
    let third = RegionOptions::new().open(&path);
    assert!(matches!(third, Err(OpenError::Busy { .. })), "the first region is open and not locked");
    first.store_u64(0, 1);
}

/// "What an interrupted growing left" is as long as the one that failed wished it to be.
#[test]
fn refused_growth_leaves_the_pool_as_it_was() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    drop(Pool::create(&path, LEN, &RegionOptions::new(), &PoolOptions::new()).unwrap());
    // Killed between the growth of the file and the first store of a header.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * LEN).unwrap();
    let mut pool = Pool::open(&path, &RegionOptions::new()).unwrap();
    assert_eq!(pool.pool_bytes(), LEN);
    let grown = pool.grow(2 * LEN);
    match grown {
        Ok(()) => assert_eq!(pool.pool_bytes(), 2 * LEN),
        Err(PoolError::Region(_)) => {
            assert_eq!(pool.pool_bytes(), LEN, "{grown:?}, and the pool is as it was then")
        }
        Err(error) => panic!("{error}"),
    }
}

/// "Nothing has been changed then, unless a variant says so": the mapping is refused, for the process has no more addresses.
#[test]
fn growth_that_cannot_be_mapped_leaves_the_file_as_it_was() {
    const IN: &str = "PM_CORE_REVIEW_GROW";
    let long = 1 << 30;
    if let Some(path) = std::env::var_os(IN) {
        let mut region = RegionOptions::new().open(path).unwrap();
        let grown = region.grow(long);
        assert!(matches!(grown, Err(OpenError::Io { operation: "mmap", .. })), "{grown:?}");
        return;
    }
    // Not in memory, and nothing is stored: its blocks are only set aside.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("x.pm");
    drop(RegionOptions::new().create(&path, LEN).unwrap());
    let test = "growth_that_cannot_be_mapped_leaves_the_file_as_it_was";
    let mut child = std::process::Command::new("sh");
    child.args(["-c", &format!("ulimit -v 800000; exec \"$0\" {test} --exact")]);
    let output = child.arg(std::env::current_exe().unwrap()).env(IN, &path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), LEN);
}
