//! `pmbd list` removes the files that dead servers left in `PMBD_RUN_DIR`, and no others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

#[test]
fn list_removes_only_files_of_dead_servers() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let of_others = ["1--3.json", "1-2-3-4.json", "1-2-x.json", "1-2.json", "package.json"];
    let of_dead_server = "1-2-3.json";
    for name in of_others.iter().chain([&of_dead_server]) {
        fs::write(dir.path().join(name), "{}").unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmbd"));
    let output = command.args(["list", "--json"]).env("PMBD_RUN_DIR", dir.path()).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, of_others);
}
