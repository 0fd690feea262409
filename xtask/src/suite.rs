//! Runs all test programs of the workspace, in two lanes at once.
//!
//! One lane has the tests of programs that contain the simulator, each in a process of its own, two at a time. What they execute is recorded for
//! [`teeth`](crate::teeth). The other lane has the other programs, one after the other as cargo runs them: some of them measure time, start servers or
//! boot guests.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result};

use crate::programs::{Outcome, Program, build, in_parallel, packages};
use crate::teeth::{Executed, Records};

/// The number of programs in the list of the slowest.
const SLOWEST: usize = 10;

/// The test programs of a workspace.
#[derive(Debug)]
pub struct Suite {
    records: Records,
    /// Those that contain the simulator, with the names of their tests.
    simulated: Vec<(Program, Vec<String>)>,
    others: Vec<Program>,
}

/// The results of tests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The number of tests that have passed.
    pub passed: usize,
    /// The tests that have failed: the program, and the test's name if it is known.
    pub failed: Vec<String>,
    /// The time of each program. Tests that ran at once count one by one.
    pub took: Vec<(Duration, String)>,
}

impl Suite {
    /// Builds the test programs of the workspace in `root` for which `is_wanted` is true.
    ///
    /// # Errors
    /// If they do not build.
    pub fn build(root: &Path, is_wanted: impl Fn(&Program) -> bool) -> Result<Self> {
        let programs = build(root, &packages(root)?)?;
        let (mut simulated, mut others) = (Vec::new(), Vec::new());
        for program in programs.into_iter().filter(is_wanted) {
            match program.has_simulator()? {
                true => simulated.push((program.tests()?, program)),
                false => others.push(program),
            }
        }
        let simulated = simulated.into_iter().map(|(tests, program)| (program, tests)).collect();
        Ok(Self { records: Records::of(root)?, simulated, others })
    }

    /// Runs all, and prints their results to standard output.
    ///
    /// # Errors
    /// If a program cannot be run. A test that fails is in the summary.
    ///
    /// # Panics
    /// If a lane does, because of a bug in it.
    pub fn run(&self) -> Result<Summary> {
        let (simulated, others) = thread::scope(|scope| {
            let others = scope.spawn(|| self.run_others());
            (self.run_simulated(), others.join().expect("a lane does not panic"))
        });
        let (mut summary, others) = (simulated?, others?);
        summary.passed += others.passed;
        summary.failed.extend(others.failed);
        summary.took.extend(others.took);
        Ok(summary)
    }

    fn run_simulated(&self) -> Result<Summary> {
        let all = self.simulated.iter().enumerate();
        let all = all.flat_map(|(index, (_, tests))| tests.iter().map(move |test| (index, test)));
        let all: Vec<(usize, &String)> = all.collect();
        let results = Mutex::new(vec![Results::default(); self.simulated.len()]);
        in_parallel(&all, |_, &(index, test)| {
            let (program, tests) = &self.simulated[index];
            let (ran, executed) = Executed::by(program, test)?;
            if ran.outcome != Outcome::Passed {
                let how = match ran.outcome {
                    Outcome::Crashed(status) => status.to_string(),
                    _ => "FAILED".to_owned(),
                };
                print(format!("\n{}: {test}: {how}\n{}\n", program.describe(), ran.output).as_bytes())?;
            }
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            let of_program = &mut results[index];
            of_program.took += ran.took;
            match executed {
                Some(executed) => of_program.executed.push(executed),
                None => of_program.failed.push(test.clone()),
            }
            if of_program.executed.len() + of_program.failed.len() == tests.len() {
                print(of_program.closing_line(&program.describe()).as_bytes())?;
            }
            Ok(())
        })?;
        let mut summary = Summary::default();
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        for ((program, _), results) in self.simulated.iter().zip(results) {
            if results.failed.is_empty() {
                self.records.record(program, &results.executed)?;
            }
            let failed = results.failed.iter().map(|test| format!("{}: {test}", program.describe()));
            summary.failed.extend(failed);
            summary.passed += results.executed.len();
            summary.took.push((results.took, program.describe()));
        }
        Ok(summary)
    }

    fn run_others(&self) -> Result<Summary> {
        let mut summary = Summary::default();
        for program in &self.others {
            let mut output = tempfile::tempfile().into_diagnostic()?;
            let start = Instant::now();
            let status = program.run_all(&[], &output)?;
            summary.took.push((start.elapsed(), program.describe()));
            let text = text_of(&mut output)?;
            print(format!("\n     Running {}\n{text}", program.describe()).as_bytes())?;
            summary.add(&text);
            let has_result = text.lines().any(|line| line.starts_with("test result: "));
            if status.success() && !has_result {
                summary.failed.push(format!("{}: no result", program.describe()));
            }
            if !status.success() && summary.add_failed(&program.describe(), &text) == 0 {
                summary.failed.push(format!("{}: {status}", program.describe()));
            }
        }
        Ok(summary)
    }
}

/// The results of the tests of one program.
#[derive(Debug, Default, Clone)]
struct Results {
    executed: Vec<Executed>,
    failed: Vec<String>,
    took: Duration,
}

impl Results {
    /// Libtest's closing line, as for the programs that run their tests in one process.
    fn closing_line(&self, program: &str) -> String {
        let (passed, failed) = (self.executed.len(), self.failed.len());
        let result = if failed == 0 { "ok" } else { "FAILED" };
        let took = self.took.as_secs_f64();
        format!(
            "\n     Ran {program}, a process for each test\n\
             test result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in {took:.2}s\n"
        )
    }
}

impl Summary {
    /// Counts the tests that have passed, by libtest's closing lines in `output`.
    pub fn add(&mut self, output: &str) {
        for line in output.lines() {
            let counts = line.strip_prefix("test result: ").and_then(|line| line.split_once(". "));
            let passed = counts.and_then(|(_, counts)| counts.split_once(" passed"));
            self.passed += passed.and_then(|(passed, _)| passed.parse::<usize>().ok()).unwrap_or_default();
        }
    }

    /// Adds the tests of a program that have failed by libtest's `output`, and returns their number.
    fn add_failed(&mut self, program: &str, output: &str) -> usize {
        let test = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
        let failed: Vec<String> = output.lines().filter_map(test).collect();
        self.failed.extend(failed.iter().map(|test| format!("{program}: {test}")));
        failed.len()
    }

    /// The slowest programs and the tests that have failed, a line each.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut took: Vec<&(Duration, String)> = self.took.iter().collect();
        took.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        let slowest = took.iter().take(SLOWEST);
        let slowest: String =
            slowest.map(|(took, program)| format!("{:>9.1} s  {program}\n", took.as_secs_f64())).collect();
        let failed: String = self.failed.iter().map(|test| format!("FAILED {test}\n")).collect();
        format!(
            "slowest test programs:\n{slowest}{failed}{} passed, {} failed",
            self.passed,
            self.failed.len()
        )
    }
}

/// Writes to standard output at once, so that the lanes do not mix.
fn print(text: &[u8]) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text).and_then(|()| output.flush()).into_diagnostic()
}

fn text_of(output: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut bytes)).into_diagnostic()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_counted() {
        let output = "test a ... ok\ntest b ... FAILED\ntest c ... ok\n\n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s\n";
        let mut summary = Summary::default();
        summary.add(output);
        assert_eq!(summary.add_failed("p tests/a.rs", output), 1);
        assert_eq!((summary.passed, summary.failed), (5, vec!["p tests/a.rs: b".to_owned()]));
    }

    /// What must not happen: a program whose process ends before its tests do, with 0, because one of them or a child of it calls `exit`, is counted as
    /// passed. The other lane expects the closing line of libtest, too.
    #[test]
    fn program_without_results_has_not_passed() {
        use crate::programs::Package;
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let program = |name: &str, script: &str| {
            let executable = directory.path().join(name);
            std::fs::write(&executable, format!("#!/bin/sh\n{script}\n")).expect("written");
            std::fs::set_permissions(&executable, std::fs::Permissions::from_mode(0o755))
                .expect("executable");
            let package =
                Package { name: name.to_owned(), directory: directory.path().into(), can_simulate: false };
            Program { package, source: "tests/b.rs".to_owned(), executable }
        };
        let ended = |program: Program| {
            let records = Records::of(crate::cargo::root()).expect("a directory");
            let suite = Suite { records, simulated: Vec::new(), others: vec![program] };
            suite.run().expect("it runs").failed
        };
        let good = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'";
        assert_eq!(ended(program("good", good)), [""; 0]);
        assert_eq!(ended(program("killed", "kill -9 $$")).len(), 1);
        assert_eq!(ended(program("exits", "echo 'running 2 tests'; exit 0")).len(), 1, "no results");
    }

    #[test]
    fn closing_line_is_that_of_libtest() {
        let executed = Vec::new();
        let results = Results { executed, failed: vec!["a".to_owned()], took: Duration::from_millis(1_500) };
        let line = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_eq!(results.closing_line("p tests/a.rs").lines().last(), Some(line));
    }

    #[test]
    fn slowest_programs_are_listed_first() {
        let took = [(500, "a"), (62_000, "b")];
        let took = took.map(|(millis, name)| (Duration::from_millis(millis), name.to_owned()));
        let summary = Summary { passed: 3, failed: vec!["a: t".to_owned()], took: took.to_vec() };
        assert_eq!(
            summary.describe(),
            "slowest test programs:\n     62.0 s  b\n      0.5 s  a\nFAILED a: t\n3 passed, 1 failed"
        );
    }
}
