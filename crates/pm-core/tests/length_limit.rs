//! A process that may make files up to a length only.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{OpenError, Pool, PoolOptions, Region, RegionOptions};
use std::process::Command;

/// Set for the process that runs below the limit.
const LIMITED: &str = "PM_CORE_TEST_LENGTH_LIMIT";

#[test]
fn file_longer_than_the_limit_is_an_error_and_no_signal() {
    let test = "file_longer_than_the_limit_is_an_error_and_no_signal";
    if std::env::var_os(LIMITED).is_none() {
        // POSIX: in units of 512 bytes.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"ulimit -f 128 && exec "$0" "$1" --exact --nocapture"#]);
        let output = shell.arg(std::env::current_exe().unwrap()).arg(test).env(LIMITED, "").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{}: {told}", output.status);
        return;
    }
    let is_refused = |error: &OpenError| error.to_string().contains("RLIMIT_FSIZE");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pm");
    let options = RegionOptions::new();
    assert!(is_refused(&options.create(&path, 1 << 20).unwrap_err()));
    assert!(is_refused(&Region::anonymous(1 << 20).unwrap_err()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    drop(Pool::create(&path, 1 << 16, &options, &PoolOptions::new()).unwrap());
    let mut region = options.open(&path).unwrap();
    assert!(is_refused(&region.grow(1 << 20).unwrap_err()));
    drop(region);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 16);
    drop(Pool::open(&path, &options).unwrap());
}
