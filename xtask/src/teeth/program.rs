//! Running one test program, as cargo would.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
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

    /// Runs the named test, or all of them until one fails, with `variable` set.
    ///
    /// # Errors
    /// When it cannot be run, or ends in another way than a test program does: nothing is known then about its tests.
    pub(super) fn run(
        &self,
        variable: (&str, &OsStr),
        test: Option<&str>,
        limit: Duration,
    ) -> Result<Outcome> {
        let describe = || format!("{} of {}", self.source, self.package.name);
        let (mut output, errors) =
            (tempfile::tempfile().into_diagnostic()?, tempfile::tempfile().into_diagnostic()?);
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package.directory);
        if let Some(test) = test {
            command.args(["--exact", test]);
        }
        command.env_remove(SITES).env_remove(SUPPRESS).env(variable.0, variable.1);
        command.envs([("CARGO_PKG_NAME", self.package.name.as_str()), ("RUST_BACKTRACE", "0")]);
        command.env("CARGO_MANIFEST_DIR", &self.package.directory);
        // The inputs that it would write down for next time fail only today.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env("INSTA_UPDATE", "no");
        command.stdin(Stdio::null());
        command.stdout(output.try_clone().into_diagnostic()?).stderr(errors.try_clone().into_diagnostic()?);
        // Whoever fails first is enough, and the others may take long.
        let watched = output.try_clone().into_diagnostic()?;
        let mut said = Vec::new();
        let has_failed = || {
            // At a place of its own: the program's own place in the file is shared with us.
            let (mut more, before) = ([0; 4096], said.len());
            while let Ok(count @ 1..) = watched.read_at(&mut more, said.len() as u64) {
                said.extend_from_slice(&more[..count]);
            }
            said.len() > before && !failed_tests(&String::from_utf8_lossy(&said)).is_empty()
        };
        match wait(&mut command, limit, has_failed).wrap_err_with(describe)? {
            Ended::TooLate => Ok(Outcome::TimedOut),
            Ended::Enough => Ok(Outcome::Failed(failed_tests(&text(&mut output)?))),
            Ended::With(status) if status.success() => Ok(Outcome::Passed),
            Ended::With(status) => match failed_tests(&text(&mut output)?) {
                tests if status.code() == Some(FAILED) && !tests.is_empty() => Ok(Outcome::Failed(tests)),
                _ => bail!("{} ended with {status}:\n{}", describe(), text(&mut { errors })?),
            },
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    With(ExitStatus),
    /// It was killed, as nobody needs the rest.
    Enough,
    /// It was killed, as it took too long.
    TooLate,
}

/// Runs a command to its end, or until `is_enough`, or for as long as `limit`.
fn wait(command: &mut Command, limit: Duration, mut is_enough: impl FnMut() -> bool) -> Result<Ended> {
    let start = Instant::now();
    let mut child = command.spawn().into_diagnostic().wrap_err("cannot be run")?;
    loop {
        if let Some(status) = child.try_wait().into_diagnostic()? {
            return Ok(Ended::With(status));
        }
        let (enough, late) = (is_enough(), start.elapsed() > limit);
        if enough || late {
            child.kill().and_then(|()| child.wait()).into_diagnostic()?;
            return Ok(if enough { Ended::Enough } else { Ended::TooLate });
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
        let wait = |script, limit, enough| wait(&mut shell(script), limit, || enough).expect("sh runs");
        let ended = wait("exit 3", Duration::from_secs(60), false);
        assert!(matches!(ended, Ended::With(status) if status.code() == Some(3)), "{ended:?}");
        assert_eq!(wait("exec sleep 60", Duration::from_millis(50), false), Ended::TooLate);
        assert_eq!(wait("exec sleep 60", Duration::from_secs(60), true), Ended::Enough);
        assert!(super::wait(&mut Command::new("/no/such/program"), Duration::ZERO, || false).is_err());
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
