//! A sparse file "takes only the space that it needs".

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{Pmem, Pool, PoolOptions, RegionOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LEN: u64 = 32 << 20;

/// A file of holes.
fn holes() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
    (dir, path)
}

fn allocated_bytes(path: &Path) -> u64 {
    512 * std::fs::metadata(path).unwrap().blocks()
}

fn sparse() -> RegionOptions {
    RegionOptions::new().sparse(true)
}

#[test]
fn formatting_a_sparse_file_leaves_it_sparse() {
    let (_dir, path) = holes();
    drop(Pool::format(sparse().open(&path).unwrap(), &PoolOptions::new()).unwrap());
    assert!(allocated_bytes(&path) < LEN / 2, "{} of {LEN} bytes", allocated_bytes(&path));
}

#[test]
fn opening_a_sparse_pool_with_one_damaged_header_leaves_it_sparse() {
    let (_dir, path) = holes();
    let shorter = LEN / 2;
    let region = sparse().create(path.with_extension("shorter"), shorter).unwrap();
    drop(Pool::format(region, &PoolOptions::new()).unwrap());
    // A growing was interrupted, and then the header's checksum was hit.
    let path = path.with_extension("shorter");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(LEN).unwrap();
    let region = sparse().open(&path).unwrap();
    region.store_u64(64, 1);
    drop(region);
    let before = allocated_bytes(&path);
    drop(Pool::open(&path, &sparse()));
    let taken = allocated_bytes(&path) - before;
    assert!(taken < LEN / 4, "reading took {taken} of {LEN} bytes");
}

#[test]
fn growing_a_sparse_file_leaves_it_sparse() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x.pm");
    let mut pool = Pool::create(&path, 1 << 20, &sparse(), &PoolOptions::new()).unwrap();
    pool.grow(LEN).unwrap();
    assert!(allocated_bytes(&path) < LEN / 2, "{} of {LEN} bytes", allocated_bytes(&path));
}
