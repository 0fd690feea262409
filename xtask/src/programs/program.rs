//! A test program, run in cargo's environment.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use memchr::memmem;
use miette::{IntoDiagnostic, Result, WrapErr};
use rustix::process::{Pid, setpriority_process};
use wait_timeout::ChildExt;

use super::package::Package;
use crate::process;

/// The variable with the directory where a process lists its executed sites.
pub(crate) const SITES: &str = "PM_CRASHSIM_SITES";
/// The variable with the site that a process skips.
pub(crate) const SUPPRESS: &str = "PM_CRASHSIM_SUPPRESS";

/// The exit code of libtest if a test has failed.
const FAILED: i32 = 101;
/// The niceness of a test in a process of its own.
const NICENESS: i32 = 5;

/// A test program of a crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The crate.
    pub package: Package,
    /// The path of its source in the crate's directory.
    pub source: String,
    /// The path of the built program.
    pub executable: PathBuf,
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It exceeded the time limit and was killed.
    TimedOut,
    /// Its process ended in another way, for instance by a signal.
    Crashed(ExitStatus),
}

/// A test that has run.
#[derive(Debug)]
pub struct Ran {
    /// Its result.
    pub outcome: Outcome,
    /// What it and its program have printed.
    pub output: String,
    /// How long it took.
    pub took: Duration,
}

impl Program {
    /// Whether the simulator is linked into it, which then contains the name of the simulator's variable.
    pub fn has_simulator(&self) -> Result<bool> {
        if !self.package.can_simulate {
            return Ok(false);
        }
        let path = &self.executable;
        let bytes = fs::read(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        Ok(memmem::find(&bytes, SUPPRESS.as_bytes()).is_some())
    }

    /// The names of its tests.
    pub fn tests(&self) -> Result<Vec<String>> {
        Ok(listed_tests(&process::output(self.command().args(["--list", "--format", "terse"]))?))
    }

    /// Runs one test with `variable` set.
    pub fn run(&self, test: &str, variable: (&str, &OsStr), limit: Duration) -> Result<Ran> {
        let mut output = tempfile::tempfile().into_diagnostic()?;
        let mut command = self.command();
        if variable.0 == SUPPRESS {
            // Failing inputs are not saved, because they may fail only without a site; saved ones are tried with all sites.
            command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        }
        command.env("INSTA_UPDATE", "no");
        command.env("RUST_BACKTRACE", "0").env(variable.0, variable.1).args([test, "--exact"]);
        // One file: the output of a test that fails is in the order in which it was written.
        let stream = || output.try_clone().into_diagnostic();
        command.stdout(stream()?).stderr(stream()?);
        let start = Instant::now();
        let status = wait(&mut command, limit).wrap_err_with(|| format!("{test} of {}", self.describe()))?;
        let took = start.elapsed();
        let output = read(&mut output)?;
        let outcome = match status.map(|status| (status, status.code())) {
            None => Outcome::TimedOut,
            Some((_, Some(0))) if output.contains("test result: ok. 1 passed") => Outcome::Passed,
            Some((_, Some(FAILED))) if output.contains("test result: FAILED") => Outcome::Failed,
            Some((status, _)) => Outcome::Crashed(status),
        };
        Ok(Ran { outcome, output, took })
    }

    /// Runs its tests as cargo does, those whose names contain one of `filters`, or all if that is empty. Both outputs go to `output`.
    pub fn run_all(&self, filters: &[String], output: &File) -> Result<ExitStatus> {
        let stream = || output.try_clone().into_diagnostic();
        let mut command = self.command();
        command.args(filters).stdout(stream()?).stderr(stream()?);
        command.status().into_diagnostic().wrap_err_with(|| self.describe())
    }

    /// Its crate and its source, which identify it for a reader.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} {}", self.package.name, self.source)
    }

    /// A command for the program with cargo's environment.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package.directory);
        command.env_remove(SITES).env_remove(SUPPRESS);
        command.env("CARGO_PKG_NAME", &self.package.name).env("CARGO_MANIFEST_DIR", &self.package.directory);
        command.stdin(Stdio::null());
        command
    }
}

/// Runs a command to its end; `None` if it exceeded `limit` and was killed.
fn wait(command: &mut Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let mut child = command.spawn().into_diagnostic().wrap_err("cannot be run")?;
    // Programs with limits of time in them, and guests, may run beside it. The time limits of teeth have room for this.
    setpriority_process(Some(Pid::from_child(&child)), NICENESS).into_diagnostic()?;
    let ended = child.wait_timeout(limit).into_diagnostic()?;
    if ended.is_none() {
        child.kill().and_then(|()| child.wait()).into_diagnostic()?;
    }
    Ok(ended)
}

fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).into_diagnostic()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names in libtest's output for `--list --format terse`.
fn listed_tests(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
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
    fn run_is_killed_at_its_limit() {
        let wait = |script, limit| wait(&mut shell(script), limit).expect("sh runs");
        assert_eq!(wait("exit 3", Duration::from_secs(60)).and_then(|status| status.code()), Some(3));
        assert_eq!(wait("exec sleep 60", Duration::from_millis(50)), None);
        assert!(super::wait(&mut Command::new("/no/such/program"), Duration::ZERO).is_err());
    }

    #[test]
    fn tests_are_listed() {
        assert_eq!(listed_tests("a: test\nb::c: test\nd: bench\n"), ["a", "b::c"]);
    }
}
