//! Suites of crates for POSIX file systems: pjdfstest, for what each call does and refuses, and fsx, for data at random offsets.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, ensure};
use xtask::cargo;

use super::super::mounted::{Mounted, line, show};

/// The crates with the suites, and their versions.
const PJDFSTEST: (&str, &str) = ("pjdfstest", "0.2.2");
const FSX: (&str, &str) = ("fsx", "0.3.2");

/// The tests of pjdfstest that run; the others are of other systems, or need a second file system.
const PJDFSTEST_RUN: u64 = 382;

/// What the system has, and users besides root.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"#;

/// The calls of fsx: with mappings, and then without, but with others. Not posix_fallocate: it would be called for no bytes, which is an error.
const FSX_CALLS: [&str; 2] = [
    "[weights]\nfsync = 1\nclose_open = 1\n",
    "[weights]\nmapread = 0\nmapwrite = 0\npunch_hole = 10\nsendfile = 10\nclose_open = 1\n",
];

/// The variable with the minutes for which fsx runs, one by default.
const FSX_MINUTES: &str = "PM_FSX_MINUTES";

/// The operations of fsx in one run.
const FSX_OPERATIONS: &str = "5000";

/// Builds and runs pjdfstest.
pub(super) fn pjdfstest(mounted: &mut Mounted) -> Result<()> {
    let program = installed(PJDFSTEST)?;
    let configuration = tempfile::NamedTempFile::new().into_diagnostic()?;
    fs::write(configuration.path(), CONFIGURATION).into_diagnostic()?;
    let mut command = Command::new(&program);
    command.arg("--configuration-file").arg(configuration.path()).arg("--path").arg(&mounted.mount);
    println!("$ {}", line(&command));
    let output = command.output().into_diagnostic().wrap_err("pjdfstest")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let summary = said.lines().find_map(|line| line.strip_prefix("Summary: ")).unwrap_or_default();
    println!("pjdfstest: {summary}");
    let failed: Vec<&str> = said.lines().filter(|line| line.trim_end().ends_with(" FAILED")).collect();
    ensure!(output.status.success(), "pjdfstest: {}\n{}", output.status, failed.join("\n"));
    let passed = count_of(summary, "passed");
    ensure!(passed >= Some(PJDFSTEST_RUN), "of pjdfstest {passed:?} tests were run, not {PJDFSTEST_RUN}");
    Ok(())
}

/// Builds fsx, and runs it with one seed after the other, with all kinds of calls in turn.
pub(super) fn fsx(mounted: &mut Mounted) -> Result<()> {
    let (program, file) = (installed(FSX)?, mounted.mount.join("fsx"));
    let minutes = std::env::var(FSX_MINUTES).map_or(Ok(1), |text| text.parse());
    let minutes: u64 = minutes.into_diagnostic().wrap_err(FSX_MINUTES)?;
    let directory = tempfile::tempdir().into_diagnostic()?;
    let (begin, mut seed) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(60 * minutes) {
        for calls in FSX_CALLS {
            let configuration = directory.path().join("fsx.toml");
            fs::write(&configuration, calls).into_diagnostic()?;
            let mut command = Command::new(&program);
            command.args(["-q", "-N", FSX_OPERATIONS, "-S", &seed.to_string(), "-f"]).arg(&configuration);
            let output = command.arg("-P").arg(directory.path()).arg(&file).output().into_diagnostic()?;
            let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success(), "{}: {}\n{said}", line(&command), output.status);
            seed += 1;
        }
    }
    println!("fsx: {seed} runs of {FSX_OPERATIONS} operations, half of them with mappings: no difference");
    Ok(())
}

/// The program of a crate, installed in the target directory.
fn installed((name, version): (&str, &str)) -> Result<PathBuf> {
    let root = cargo::root().join("target/suites").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        let mut command = cargo::command();
        command.args(["install", "--quiet", "--locked", name, "--version", version, "--root"]).arg(&root);
        show(&mut command)?;
    }
    Ok(program)
}

/// The number before a word of a summary such as `0 failed, 16 skipped`.
fn count_of(summary: &str, word: &str) -> Option<u64> {
    let count = summary.split(", ").find_map(|part| part.strip_suffix(word))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_a_summary() {
        let summary = "8 failed, 16 skipped, 374 passed, 0 expected failures, 398 total";
        assert_eq!(count_of(summary, "passed"), Some(374));
        assert_eq!(count_of("", "passed"), None);
    }
}
