//! The quick group of xfstests, from a directory in which it was built. Which of its tests pass on FUSE depends on the kernel, so failures are only listed.
//!
//! xfstests mounts with mount(8), which runs a program of `/sbin` for the type `fuse.pmfs`. It is there while the tests run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, ensure, miette};
use xtask::cargo;

use super::super::mounted::{Mounted, line};

/// The variable with the directory.
pub(super) const DIRECTORY: &str = "PM_XFSTESTS";

/// The size of the file system for most tests, and of that which is emptied before each test. xfstests cannot make new ones.
const SIZE: &str = "2G";

/// What mount(8) runs.
const HELPER: &str = "/sbin/mount.fuse.pmfs";

/// The helper, removed at the end.
struct Helper;

impl Drop for Helper {
    fn drop(&mut self) {
        fs::remove_file(HELPER).ok();
    }
}

impl Helper {
    fn install(program: &Path) -> Result<Self> {
        ensure!(!Path::new(HELPER).exists(), "{HELPER} exists; a run that was killed may have left it");
        // The last server may still close the file when its directory is unmounted. Other modes than the default are not supported.
        let script = format!(
            r#"#!/bin/sh
case ",$4," in *,remount,* | *,ro,*) exit 32 ;; esac
for try in 1 2 3 4 5 6 7 8 9 10; do
    '{program}' mount "$1" "$2" </dev/null >/dev/null 2>&1 &
    while kill -0 $! 2>/dev/null; do
        if mountpoint -q "$2"; then exit 0; fi
        sleep 0.1
    done
    sleep 0.5
done
exit 32
"#,
            program = program.display()
        );
        fs::write(HELPER, script).into_diagnostic().wrap_err(HELPER)?;
        let helper = Self;
        fs::set_permissions(HELPER, fs::Permissions::from_mode(0o755)).into_diagnostic()?;
        Ok(helper)
    }
}

/// Runs the tests in the directory with `check`, and prints how many have passed.
pub(super) fn run(directory: &Path) -> Result<()> {
    ensure!(directory.join("check").is_file(), "{DIRECTORY}: {} has no check", directory.display());
    let (test, scratch) = (Mounted::new(SIZE)?, Mounted::new(SIZE)?);
    let _helper = Helper::install(&test.program)?;
    let results: PathBuf = cargo::root().join("target/suites/xfstests-results");
    fs::create_dir_all(&results).into_diagnostic()?;
    let configuration = tempfile::NamedTempFile::new().into_diagnostic()?;
    fs::write(configuration.path(), text_of([&test, &scratch], &results)).into_diagnostic()?;
    let mut command = Command::new("./check");
    command.args(["-g", "quick"]).current_dir(directory).env("HOST_OPTIONS", configuration.path());
    println!("$ {}", line(&command));
    let output = command.stderr(Stdio::inherit()).output().into_diagnostic().wrap_err("check")?;
    for mounted in [&test, &scratch] {
        Command::new("umount").arg(&mounted.mount).stderr(Stdio::null()).status().ok();
    }
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().filter(|line| line.starts_with("Failures:")).for_each(|line| println!("{line}"));
    let counts = counts_of(&said);
    let (failed, run) = counts.ok_or_else(|| miette!("check has run no tests: {}\n{said}", output.status))?;
    println!("xfstests: {} passed, {failed} failed; see {}", run - failed, results.display());
    // The servers close their files after they are unmounted.
    thread::sleep(Duration::from_secs(2));
    [&test, &scratch].into_iter().try_for_each(|mounted| mounted.pmfs(&["fsck"]))
}

/// The configuration: as the README.fuse of xfstests describes it.
fn text_of([test, scratch]: [&Mounted; 2], results: &Path) -> String {
    let lines = [
        ("FSTYP", "fuse".to_owned()),
        ("FUSE_SUBTYP", ".pmfs".to_owned()),
        ("TEST_DEV", test.file.display().to_string()),
        ("TEST_DIR", test.mount.display().to_string()),
        ("SCRATCH_DEV", scratch.file.display().to_string()),
        ("SCRATCH_MNT", scratch.mount.display().to_string()),
        ("RESULT_BASE", results.display().to_string()),
    ];
    lines.map(|(name, value)| format!("export {name}='{value}'\n")).concat()
}

/// The tests that have failed, and all that were run, from the last lines of `check`.
fn counts_of(said: &str) -> Option<(u64, u64)> {
    said.lines().rev().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Failed", failed, "of", all, "tests"] => Some((failed.parse().ok()?, all.parse().ok()?)),
            ["Passed", "all", all, "tests"] => Some((0, all.parse().ok()?)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_last_lines() {
        assert_eq!(counts_of("Ran: generic/001\nFailed 2 of 300 tests\n\n"), Some((2, 300)));
        assert_eq!(counts_of("Passed all 12 tests\n"), Some((0, 12)));
        assert_eq!(counts_of("check: failed to mount\n"), None);
    }
}
