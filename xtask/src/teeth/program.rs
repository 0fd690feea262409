//! Running one test program, as cargo would.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, bail};

use super::packages::Package;

/// Names the directory where a process lists its sites.
pub(super) const SITES: &str = "PM_CRASHSIM_SITES";
/// Names the site that a process does without.
pub(super) const SUPPRESS: &str = "PM_CRASHSIM_SUPPRESS";

/// How libtest ends when a test has failed.
const FAILED: i32 = 101;
/// How often a running test is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// A test program of a crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The crate.
    pub package: Package,
    /// Its source, from the crate's directory.
    pub source: String,
    /// What cargo built of it.
    pub executable: PathBuf,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every test passed.
    Passed,
    /// These tests failed: at least one.
    Failed(Vec<String>),
    /// It had not ended in time, and was ended.
    TimedOut,
}

impl Program {
    /// Whether the simulator is linked into it: only then can it exercise sites, and be told to do without one. The
    /// name of the variable that the simulator reads is in every program that has it.
    pub(super) fn has_simulator(&self) -> Result<bool> {
        let path = &self.executable;
        let bytes = fs::read(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        Ok(contains(&bytes, SUPPRESS.as_bytes()))
    }

    /// Runs all of its tests with `variable` set.
    ///
    /// # Errors
    /// When it cannot be run, or ends in another way than a test program does: nothing is known then about its tests.
    pub(super) fn run(&self, variable: (&str, &OsStr), limit: Duration) -> Result<Outcome> {
        let describe = || format!("{} of {}", self.source, self.package.name);
        let (mut output, errors) =
            (tempfile::tempfile().into_diagnostic()?, tempfile::tempfile().into_diagnostic()?);
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package.directory);
        command.env_remove(SITES).env_remove(SUPPRESS).env(variable.0, variable.1);
        command.envs([("CARGO_PKG_NAME", self.package.name.as_str()), ("RUST_BACKTRACE", "0")]);
        command.env("CARGO_MANIFEST_DIR", &self.package.directory);
        // The inputs that it would write down for next time fail only today.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env("INSTA_UPDATE", "no");
        command.stdin(Stdio::null());
        command.stdout(output.try_clone().into_diagnostic()?).stderr(errors.try_clone().into_diagnostic()?);
        match wait(&mut command, limit).wrap_err_with(describe)? {
            None => Ok(Outcome::TimedOut),
            Some(status) if status.success() => Ok(Outcome::Passed),
            Some(status) => match failed_tests(&text(&mut output)?) {
                tests if status.code() == Some(FAILED) && !tests.is_empty() => Ok(Outcome::Failed(tests)),
                _ => bail!("{} ended with {status}:\n{}", describe(), text(&mut { errors })?),
            },
        }
    }
}

/// Runs a command to its end; `None` when it took longer than `limit`, and was killed.
fn wait(command: &mut Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut child = command.spawn().into_diagnostic().wrap_err("cannot be run")?;
    loop {
        if let Some(status) = child.try_wait().into_diagnostic()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill().and_then(|()| child.wait()).into_diagnostic()?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).into_diagnostic()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names of the tests that libtest says have failed.
fn failed_tests(output: &str) -> Vec<String> {
    let failed = |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
    output.lines().filter_map(failed).collect()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A directory for the lists of one program's processes, and what they wrote there.
pub(super) fn listed(directory: &tempfile::TempDir) -> Result<String> {
    let mut all = String::new();
    for entry in fs::read_dir(directory.path()).into_diagnostic()? {
        let path = entry.into_diagnostic()?.path();
        all += &fs::read_to_string(&path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_run_that_takes_too_long_is_ended() {
        let ended = wait(&mut shell("exit 3"), Duration::from_secs(60)).expect("sh runs");
        assert_eq!(ended.and_then(|status| status.code()), Some(3));
        assert!(wait(&mut shell("exec sleep 60"), Duration::from_millis(50)).expect("sh runs").is_none());
        assert!(wait(&mut Command::new("/no/such/program"), Duration::ZERO).is_err());
    }

    #[test]
    fn failed_tests_are_named() {
        let output =
            "running 3 tests\ntest a ... ok\ntest b::c ... FAILED\ntest d - should panic ... FAILED\n";
        assert_eq!(failed_tests(output), ["b::c", "d - should panic"]);
        assert_eq!(failed_tests("error: no such option\n"), [""; 0]);
    }

    #[test]
    fn a_part_is_found_anywhere() {
        assert!(contains(b"..PM", b"PM") && contains(b"PM", b"PM") && !contains(b"..P.M", b"PM"));
    }
}
