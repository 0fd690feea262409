//! File systems that cannot make nameless files (vfat, some network and FUSE file systems): what creating a file removes there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_arch = "x86_64")]

use pm_core::{Pool, PoolOptions, RegionOptions};
use std::path::Path;
use std::process::Command;

const IN: &str = "PM_CORE_REVIEW_IN";

/// From here on `openat` with `O_TMPFILE` answers as such a file system does.
fn refuse_nameless_files() {
    const OPENAT: u32 = 257;
    const TMPFILE: u32 = 0x40_0000;
    let (load, jump_eq, jump_set, ret) = (0x20, 0x15, 0x45, 0x06);
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        instruction(load, 0, 0, 0),
        instruction(jump_eq, 0, 3, OPENAT),
        // The low half of the third argument.
        instruction(load, 0, 0, 16 + 2 * 8),
        instruction(jump_set, 0, 1, TMPFILE),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP.cast_unsigned()),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 6, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers alone.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program lives until the call is over, and the kernel copies it.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(answer, 0);
}

#[test]
fn creating_a_pool_removes_no_other_pool() {
    let (region, options) = (RegionOptions::new(), PoolOptions::new());
    if let Some(dir) = std::env::var_os(IN) {
        let dir = Path::new(&dir);
        refuse_nameless_files();
        drop(Pool::create(dir.join("data.creating-2026"), 1 << 16, &region, &options).unwrap());
        drop(Pool::create(dir.join("data"), 1 << 16, &region, &options).unwrap());
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child
        .args(["creating_a_pool_removes_no_other_pool", "--exact"])
        .env(IN, dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(dir.path().join("data").exists());
    assert!(dir.path().join("data.creating-2026").exists(), "a closed pool is gone");
}
