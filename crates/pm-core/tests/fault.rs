//! Accesses to a mapping whose file has been truncated.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::fault::MediumFault;
use pm_core::{Pmem, Region, RegionOptions};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const LEN: u64 = 1 << 20;

/// A region that maps a file in memory, and the file, which the test can truncate.
fn region() -> (tempfile::TempDir, Region, std::fs::File) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file.pm");
    let region = RegionOptions::new().create(&path, LEN).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    (dir, region, file)
}

#[test]
fn access_to_truncated_file_is_error() {
    let (_dir, region, file) = region();
    region.store_nt(0, &[7; 8192]);
    file.set_len(4096).unwrap();
    let mut out = vec![1; 8192];
    for len in [1, 8, 100, 4096, 8192] {
        assert_eq!(region.try_load(4096, &mut out[..len]), Err(MediumFault), "load of {len}");
        assert_eq!(region.try_store_nt(4096, &out[..len]), Err(MediumFault), "store_nt of {len}");
        assert_eq!(region.try_store(4096, &out[..len]), Err(MediumFault), "store of {len}");
        assert_eq!(region.try_flush(4096, len as u64), Err(MediumFault), "flush of {len}");
        assert_eq!(region.try_load(4095, &mut out[..len]).is_ok(), len == 1, "load of {len} across the end");
    }
    assert_eq!(region.try_load(0, &mut out[..4096]), Ok(()));
    assert!(out[..4096].iter().all(|byte| *byte == 7), "bytes before the end are still readable");
    file.set_len(LEN).unwrap();
    assert_eq!(region.try_store_nt(4096, &[9; 4096]), Ok(()));
    assert_eq!((region.try_store(8192, &[9; 8]), region.try_flush(8192, 8)), (Ok(()), Ok(())));
    assert_eq!(region.load_u64(8192), 0x0909_0909_0909_0909);
    assert_eq!(region.load_u64(4096), 0x0909_0909_0909_0909);
}

/// A range outside the region is a bug of the caller, so `try_load` panics. A later fault in the same thread is still returned as an error.
#[test]
fn panic_does_not_disable_fault_detection() {
    let (_dir, region, file) = region();
    let outside = std::panic::catch_unwind(|| region.try_load(LEN, &mut [0]));
    assert!(outside.is_err());
    file.set_len(4096).unwrap();
    assert_eq!(region.try_load(8192, &mut [0]), Err(MediumFault));
}

#[test]
fn each_thread_receives_only_its_own_faults() {
    let (_dir, region, file) = region();
    region.store_nt(0, &[7; 4096]);
    file.set_len(4096).unwrap();
    let region = &region;
    std::thread::scope(|threads| {
        for thread in 0..4 {
            threads.spawn(move || {
                let mut page = [0; 4096];
                for round in 0..500 {
                    let is_in_file = (thread + round) % 2 == 0;
                    let at = if is_in_file { 0 } else { 4096 };
                    assert_eq!(region.try_load(at, &mut page).is_ok(), is_in_file);
                }
            });
        }
    });
}

/// The environment variable that is set for a child process of a test: the directory of the child's file.
const CHILD: &str = "PM_FAULT_CHILD";

#[test]
fn sigbus_outside_of_guard_ends_process() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let path = std::path::Path::new(&dir).join("file.pm");
        let region = RegionOptions::new().create(&path, LEN).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!(region.try_load(4096, &mut [0]), Err(MediumFault));
        region.load_u64(4096);
        unreachable!("the load must end the process");
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["sigbus_outside_of_guard_ends_process", "--exact"]).env(CHILD, dir.path());
    let output = child.output().unwrap();
    assert_eq!(output.status.signal(), Some(7), "SIGBUS: {output:?}");
}

/// A SIGBUS sent by a process stays ignored. A SIGBUS raised by an access ends the process, because the access would otherwise be repeated forever.
#[test]
fn ignored_sigbus_ends_process_only_if_raised_by_access() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let path = std::path::Path::new(&dir).join("file.pm");
        let region = RegionOptions::new().create(&path, LEN).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!(region.try_load(4096, &mut [0]), Err(MediumFault));
        assert!(Command::new("sh").args(["-c", "kill -BUS $PPID"]).status().unwrap().success());
        println!("survived the signal");
        region.load_u64(4096);
        unreachable!("the load must end the process");
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // With one test thread, the test runs in the main thread, which receives the signal.
    let test = "ignored_sigbus_ends_process_only_if_raised_by_access --exact --nocapture --test-threads=1";
    let mut child = Command::new("sh");
    child.args(["-c", &format!("trap '' BUS; ulimit -t 5; exec \"$0\" {test}")]);
    let output = child.arg(std::env::current_exe().unwrap()).env(CHILD, dir.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("survived the signal"), "{output:?}");
    assert_eq!(output.status.signal(), Some(7), "SIGBUS: {output:?}");
}
