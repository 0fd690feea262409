//! Protections at their limits: read-only and truncated files, jumps, signals, and a late end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "makes stray accesses")]

use pm_core::protection::{Method, Protected, Protection, StrayPolicy};
use pm_core::{Pmem, Region, RegionOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LEN: u64 = 1 << 20;

/// The environment variable that marks the child process of a test.
const CHILD: &str = "PM_CORE_CHILD";

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region.pm");
    drop(RegionOptions::new().create(&path, LEN).unwrap());
    (dir, path)
}

fn protected(protection: &Protection) -> Protected<Region> {
    let (_dir, path) = file();
    Protected::new(RegionOptions::new().open(path).unwrap(), protection).unwrap()
}

/// Runs the test of this name as a child, for at most ten seconds. `None` if it does not end.
fn child(name: &str) -> Option<ExitStatus> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// A read-only region can be read whatever protects it.
#[test]
fn read_only_regions_are_readable_if_reads_are_guarded() {
    let (_dir, path) = file();
    for method in [Method::PageTable, Method::Unmapped, Method::PrivateMap, Method::Async] {
        let region = RegionOptions::new().read_only().open(&path).unwrap();
        let region = Protected::new(region, &Protection::new(method).guard_reads(true)).unwrap();
        assert_eq!(region.try_load(4096, &mut [1; 8]), Ok(()), "{method}");
        assert_eq!(region.load_u64(4096), 0, "{method}");
    }
}

/// A server stops at once, however late pages are to be closed.
#[test]
fn async_protection_ends_at_once() {
    let region = protected(&Protection::new(Method::Async).batch(Duration::from_secs(20)));
    region.store_u64(0, 1);
    // The thread has begun to wait.
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    drop(region);
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
}

/// A stray load of a read-only region is let through too.
#[test]
fn stray_load_of_read_only_region_is_let_through() {
    if std::env::var(CHILD).is_ok() {
        let (_dir, path) = file();
        let region = RegionOptions::new().read_only().open(&path).unwrap();
        let protection = Protection::new(Method::PageTable).guard_reads(true);
        let region = Protected::new(region, &protection.on_stray(StrayPolicy::LetThrough)).unwrap();
        let base = region.get_ref().base_ptr().as_ptr();
        // SAFETY: none. The byte is inside the mapping.
        let byte = unsafe { base.wrapping_add(4096).read_volatile() };
        assert_eq!((byte, region.windows().stray_count()), (0, 1));
        return;
    }
    let status = child("stray_load_of_read_only_region_is_let_through").unwrap();
    assert!(status.success(), "{status:?}, signal {:?}", status.signal());
}

/// The interrupted code does not notice the handler, whatever it keeps in the frame pointer's register: most code is compiled without frame pointers.
#[cfg(target_arch = "x86_64")]
#[test]
fn stray_that_is_let_through_leaves_errno() {
    let region = protected(&Protection::new(Method::PageTable).on_stray(StrayPolicy::LetThrough));
    let page = region.get_ref().base_ptr().as_ptr().wrapping_add(4096);
    // SAFETY: no arguments.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own.
    unsafe { *errno = 0 };
    // SAFETY: none. The byte is inside the mapping; RBP is restored.
    unsafe {
        core::arch::asm!(
            "xchg rbp, {value}", "mov byte ptr [{page}], 7", "xchg rbp, {value}",
            value = inout(reg) 8_usize => _, page = in(reg) page,
        );
    }
    // SAFETY: the thread's own.
    let errno = unsafe { *errno };
    assert_eq!((errno, region.windows().stray_count()), (0, 1));
}

/// A jump into the region cannot be let through: opening the page for loads and stores does not help.
#[test]
fn stray_jump_ends_the_process() {
    if std::env::var(CHILD).is_ok() {
        let protection = Protection::new(Method::PageTable).guard_reads(true);
        let region = protected(&protection.on_stray(StrayPolicy::LetThrough));
        let base = region.get_ref().base_ptr().as_ptr();
        // SAFETY: none. It ends the process.
        let jump = unsafe { core::mem::transmute::<*mut u8, extern "C" fn()>(base.wrapping_add(4096)) };
        jump();
        unreachable!("the page holds no instructions");
    }
    let status = child("stray_jump_ends_the_process");
    assert!(status.is_some(), "the stray is reported for ever");
}

/// The last page of a file that was truncated in its middle.
#[test]
fn kernel_copies_do_not_lengthen_a_file_that_was_truncated_inside_a_page() {
    for guard_reads in [true, false] {
        let (_dir, path) = file();
        let region = RegionOptions::new().open(&path).unwrap();
        let region =
            Protected::new(region, &Protection::new(Method::Unmapped).guard_reads(guard_reads)).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(8192 + 100).unwrap();
        region.try_store_nt(8192, &[1; 4096]).ok();
        assert_eq!(file.metadata().unwrap().len(), 8192 + 100, "reads guarded: {guard_reads}");
    }
}

/// A limit on the length of files does not concern stores inside the file, and must not end the process: mapped stores do not notice it.
#[test]
fn kernel_copies_under_a_file_size_limit_do_not_end_the_process() {
    if std::env::var(CHILD).is_ok() {
        let region = protected(&Protection::new(Method::Unmapped));
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the limit is valid for the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        // An error is fine.
        region.try_store_nt(8192, &[1; 8]).ok();
        return;
    }
    let status = child("kernel_copies_under_a_file_size_limit_do_not_end_the_process").unwrap();
    assert!(status.success(), "{status:?}, signal {:?}", status.signal());
}
