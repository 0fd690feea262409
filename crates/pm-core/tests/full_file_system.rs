//! Pools on a small file system in memory. Sparse ones when it is full: calls that store nothing need no space. Others that grow beyond its
//! size: they stay unchanged.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use pm_core::fault::MediumFault;
use pm_core::{HeaderState, HugePages, OpenError, Pmem, Pool, PoolError, PoolOptions, RegionOptions};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const POOL_BYTES: u64 = 1 << 16;

/// Tells a child of the test where its file system is mounted.
const MOUNTED: &str = "PM_CORE_TEST_MOUNTED";

/// Runs `body` in a separate process, in whose mount namespace there is a small file system.
fn on_small_tmpfs(test: &str, body: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        return body(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=1m,mode=700 tmpfs "$0" && exec "$1" "$2" --exact --nocapture"#;
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        // Without root, as the root of a user namespace.
        command.arg("--map-root-user");
    }
    command.args(["/bin/sh", "-c", script]).arg(dir.path()).arg(std::env::current_exe().unwrap()).arg(test);
    let output = command.env(MOUNTED, dir.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}{}", output.status, String::from_utf8_lossy(&output.stdout));
}

fn sparse() -> RegionOptions {
    RegionOptions::new().sparse(true).huge_pages(HugePages::Never)
}

/// A pool whose growing was interrupted before anything was stored at its new end, on a file system that is full since.
fn pool_with_a_hole_at_its_end(dir: &Path) -> PathBuf {
    let path = dir.join("pool.pm");
    drop(Pool::create(&path, POOL_BYTES, &sparse(), &PoolOptions::new()).unwrap());
    OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * POOL_BYTES).unwrap();
    let other = File::create(dir.join("other")).unwrap();
    let is_stored = |page: u64| other.write_at(&[1; 4096], page * 4096).is_ok_and(|len| len == 4096);
    let stored_count = (0..).take_while(|page| is_stored(*page)).count();
    assert!(stored_count < 256, "the file system is not full");
    path
}

#[test]
fn pool_opens_after_interrupted_growth() {
    on_small_tmpfs("pool_opens_after_interrupted_growth", |dir| {
        let path = pool_with_a_hole_at_its_end(dir);
        for options in [sparse().read_only(), sparse().scratch(), sparse()] {
            let pool = Pool::open(&path, &options).unwrap();
            assert_eq!((pool.pool_bytes(), pool.header_state()), (POOL_BYTES, HeaderState::Intact));
        }
    });
}

#[test]
fn pool_opens_with_corrupted_header() {
    on_small_tmpfs("pool_opens_with_corrupted_header", |dir| {
        let path = pool_with_a_hole_at_its_end(dir);
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0xDE], 70).unwrap();
        for options in [sparse().read_only(), sparse().scratch(), sparse()] {
            let pool = Pool::open(&path, &options).unwrap();
            assert_eq!(pool.pool_bytes(), POOL_BYTES);
            assert!(matches!(pool.header_state(), HeaderState::PrimaryCorrupted(_)));
        }
    });
}

#[test]
fn try_load_returns_zeroes_for_holes() {
    on_small_tmpfs("try_load_returns_zeroes_for_holes", |dir| {
        let path = pool_with_a_hole_at_its_end(dir);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for options in [sparse().read_only(), sparse()] {
            let pool = Pool::open(&path, &options).unwrap();
            // From the backup of the header on, which is no hole.
            let start = POOL_BYTES - 8;
            let mut bytes = [1; 3 * 4096];
            assert_eq!(pool.pmem().try_load(start, &mut bytes), Ok(()));
            assert!(bytes[8..].iter().all(|byte| *byte == 0));
            file.set_len(POOL_BYTES + 4096).unwrap();
            assert_eq!(pool.pmem().try_load(start, &mut bytes), Err(MediumFault));
            drop(pool);
            file.set_len(2 * POOL_BYTES).unwrap();
        }
    });
}

/// Tells a child of the test which pool it grows.
const GROWN: &str = "PM_CORE_TEST_GROWN";

/// Grows a pool by more than the file system has, in a process that is killed at that call, if any; then opens the pool.
fn pool_opens_after_growth(test: &str, killed_at: Option<libc::c_long>) {
    let options = || RegionOptions::new().huge_pages(HugePages::Never);
    if let Some(path) = std::env::var_os(GROWN) {
        let mut pool = Pool::open(&path, &options()).unwrap();
        if let Some(call) = killed_at {
            answers::answer(call, None, answers::KILL);
        }
        assert!(matches!(pool.grow(2 << 20), Err(PoolError::Region(OpenError::NoSpace { .. }))));
        return;
    }
    on_small_tmpfs(test, |dir| {
        let path = dir.join("pool.pm");
        drop(Pool::create(&path, POOL_BYTES, &options(), &PoolOptions::new()).unwrap());
        let mut grows = Command::new(std::env::current_exe().unwrap());
        let grown = grows.args([test, "--exact"]).env(GROWN, &path).output().unwrap();
        match killed_at {
            None => assert!(grown.status.success(), "{grown:?}"),
            Some(_) => assert_eq!(grown.status.signal(), Some(libc::SIGSYS), "{grown:?}"),
        }
        for options in [options().read_only(), options()] {
            let pool = Pool::open(&path, &options).unwrap();
            assert_eq!((pool.pool_bytes(), pool.header_state()), (POOL_BYTES, HeaderState::Intact));
        }
    });
}

#[test]
fn pool_opens_after_growth_without_space() {
    pool_opens_after_growth("pool_opens_after_growth_without_space", None);
}

#[test]
fn pool_opens_after_growth_killed_at_fallocate() {
    let test = "pool_opens_after_growth_killed_at_fallocate";
    pool_opens_after_growth(test, Some(libc::SYS_fallocate));
}

#[test]
fn pool_opens_after_growth_killed_at_ftruncate() {
    let test = "pool_opens_after_growth_killed_at_ftruncate";
    pool_opens_after_growth(test, Some(libc::SYS_ftruncate));
}
