//! A crate and its test programs, run in cargo's environment.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use memchr::memmem;
use miette::{IntoDiagnostic, Result, WrapErr, bail};
use wait_timeout::ChildExt;

use crate::process;

/// The variable with the directory where a process lists its executed sites.
pub(super) const SITES: &str = "PM_CRASHSIM_SITES";
/// The variable with the site that a process skips.
pub(super) const SUPPRESS: &str = "PM_CRASHSIM_SUPPRESS";

/// The exit code of libtest if a test has failed.
const FAILED: i32 = 101;

/// A crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The directory of its `Cargo.toml`, in which its tests run.
    pub directory: PathBuf,
}

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
}

impl Program {
    /// Whether the simulator is linked into it, which then contains the name of the simulator's variable.
    pub(super) fn has_simulator(&self) -> Result<bool> {
        let path = &self.executable;
        let bytes = fs::read(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        Ok(memmem::find(&bytes, SUPPRESS.as_bytes()).is_some())
    }

    /// The names of its tests.
    pub(super) fn tests(&self) -> Result<Vec<String>> {
        Ok(listed_tests(&process::output(self.command().args(["--list", "--format", "terse"]))?))
    }

    /// Runs one test with `variable` set.
    pub(super) fn run(&self, test: &str, variable: (&str, &OsStr), limit: Duration) -> Result<Outcome> {
        let describe = || format!("{test} of {}", self.describe());
        let (mut output, errors) =
            (tempfile::tempfile().into_diagnostic()?, tempfile::tempfile().into_diagnostic()?);
        let mut command = self.command();
        command.args([test, "--exact"]).env(variable.0, variable.1);
        command.stdout(output.try_clone().into_diagnostic()?).stderr(errors.try_clone().into_diagnostic()?);
        let Some(status) = wait(&mut command, limit).wrap_err_with(describe)? else {
            return Ok(Outcome::TimedOut);
        };
        let text = read(&mut output)?;
        match status.code() {
            Some(0) if text.contains("test result: ok. 1 passed") => Ok(Outcome::Passed),
            Some(FAILED) if text.contains("test result: FAILED") => Ok(Outcome::Failed),
            _ => bail!("{} ended with {status}:\n{text}{}", describe(), read(&mut { errors })?),
        }
    }

    fn describe(&self) -> String {
        format!("{} of {}", self.source, self.package.name)
    }

    /// A command for the program with cargo's environment.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package.directory);
        command.env_remove(SITES).env_remove(SUPPRESS);
        command.envs([("CARGO_PKG_NAME", self.package.name.as_str()), ("RUST_BACKTRACE", "0")]);
        command.env("CARGO_MANIFEST_DIR", &self.package.directory);
        // Failing inputs are not saved, because they fail only without a site.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env("INSTA_UPDATE", "no");
        command.stdin(Stdio::null());
        command
    }
}

/// Runs a command to its end; `None` if it exceeded `limit` and was killed.
fn wait(command: &mut Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let mut child = command.spawn().into_diagnostic().wrap_err("cannot be run")?;
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

/// The concatenated files of a directory where processes have listed their sites.
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
