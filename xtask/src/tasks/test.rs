//! `cargo xtask test`: the steps of CI, on any machine. All steps run, even after one has failed; quick steps are first.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};
use rustix::process::{Pid, setpriority_process};
use xtask::apt::{self, Need};
use xtask::cargo::{command as cargo_command, root};
use xtask::process::succeeds;
use xtask::vm::Vm;

use super::{fs_suites, teeth, tidy};

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these steps [default: all but fs-suites].
    #[arg(value_enum)]
    steps: Vec<Step>,
    /// Tests try everything: exhaustive searches that the default run cuts to seconds.
    #[arg(long)]
    deep: bool,
}

/// The variable that makes tests try everything.
const DEPTH: (&str, &str) = ("PM_TEST_DEPTH", "deep");

/// The number of test programs in the list of the slowest.
const SLOWEST: usize = 10;

/// The steps of CI, in this order, and others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// cargo fmt --all --check.
    Fmt,
    /// cargo clippy --workspace, all targets; warnings are errors.
    Clippy,
    /// cargo check for aarch64.
    Aarch64,
    /// The house rules.
    Tidy,
    /// cargo test --workspace: unit, integration, property and doc tests, and tests on a real kernel.
    Tests,
    /// Interleavings of threads in the log, the space, the roots and the leaves of a store, by loom.
    Loom,
    /// Without any one flush or fence, a test fails.
    Teeth,
    /// cargo doc --workspace; warnings are errors.
    Docs,
    /// pjdfstest, fsx, fio, dbench, postmark, stress-ng and SQLite on a mounted file system, and xfstests from the directory PM_XFSTESTS. Not in CI.
    FsSuites,
}

/// The other architecture of pm-core.
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// The programs that tests run, in addition to those of the guest.
const NEEDS: [Need; 15] = [
    Need::new("cc", "gcc"),
    Need::new("c++", "g++"),
    Need::new("bash", "bash"),
    Need::new("perl", "perl"),
    Need::new("bin/python3", "python3"),
    Need::new("sqlite3", "sqlite3"),
    Need::new("git", "git"),
    Need::new("redis-server", "redis-server"),
    Need::new("nginx", "nginx-light"),
    Need::new("include/jemalloc/jemalloc.h", "libjemalloc-dev"),
    Need::new("fio", "fio"),
    Need::new("fusermount3", "fuse3"),
    Need::new("nbdcopy", "libnbd-bin"),
    Need::new("nbdinfo", "libnbd-bin"),
    Need::new("nbdkit", "nbdkit"),
];

/// The result of a step.
struct Outcome {
    step: Step,
    result: Result<()>,
    duration: Duration,
}

/// Runs the steps, prints a table of their results, and succeeds if all have passed.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let wanted = |step: &Step| match args.steps.is_empty() {
        true => *step != Step::FsSuites,
        false => args.steps.contains(step),
    };
    let steps: Vec<Step> = Step::value_variants().iter().copied().filter(wanted).collect();
    let (beside, alone): (Vec<Step>, Vec<Step>) =
        steps.iter().partition(|step| steps.contains(&Step::Tests) && step.runs_beside_tests());
    let mut outcomes = Vec::new();
    for step in alone {
        let beside = if step == Step::Tests { &beside[..] } else { &[] };
        thread::scope(|scope| -> Result<()> {
            let others = scope.spawn(|| beside.iter().map(|step| step.in_own_process()).collect::<Vec<_>>());
            outcomes.push(step.in_this_process(args.deep));
            for other in others.join().expect("a step does not panic") {
                let (outcome, output) = other?;
                io::stdout().write_all(&output).into_diagnostic()?;
                outcomes.push(outcome);
            }
            Ok(())
        })?;
    }
    if outcomes.len() > 1 {
        println!("\n{} in {:.1} s", table(&outcomes), start.elapsed().as_secs_f64());
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.result.is_err()) {
        println!("this step alone: ./x test {}", outcome.step.name());
    }
    let all_passed = outcomes.iter().all(|outcome| outcome.result.is_ok());
    Ok(if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Step {
    /// Its name and description on the command line.
    fn value(self) -> PossibleValue {
        self.to_possible_value().expect("no step is hidden")
    }

    fn name(self) -> String {
        self.value().get_name().to_owned()
    }

    /// Whether it runs while the tests run, whose guests use only one processor.
    const fn runs_beside_tests(self) -> bool {
        matches!(self, Self::Loom | Self::Teeth | Self::Docs)
    }

    /// Runs it with inherited output.
    fn in_this_process(self, deep: bool) -> Outcome {
        let about = self.value().get_help().map_or_else(String::new, ToString::to_string);
        println!("\n==> {}: {about}", self.name());
        let start = Instant::now();
        let result = self.run(deep);
        let outcome = Outcome { step: self, result, duration: start.elapsed() };
        if let Err(report) = &outcome.result {
            eprintln!("{report:?}");
        }
        println!("<== {}", outcome.line());
        outcome
    }

    /// Runs it with captured output, which is returned.
    fn in_own_process(self) -> Result<(Outcome, Vec<u8>)> {
        let start = Instant::now();
        let (mut output, writer) = io::pipe().into_diagnostic()?;
        // Not `current_exe`: building the tests may replace the file.
        let mut command = Command::new("/proc/self/exe");
        command.args(["test", &self.name()]).stdout(writer.try_clone().into_diagnostic()?).stderr(writer);
        let mut child = command.spawn().into_diagnostic()?;
        // The tests take longer, and leave a processor idle while a guest runs. The time limits of teeth have room for this.
        setpriority_process(Some(Pid::from_child(&child)), 5).into_diagnostic()?;
        // Closes the write end here, so that the output ends.
        drop(command);
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).into_diagnostic()?;
        let status = child.wait().into_diagnostic()?;
        let result = if status.success() { Ok(()) } else { Err(miette!("{status}")) };
        Ok((Outcome { step: self, result, duration: start.elapsed() }, bytes))
    }

    fn run(self, deep: bool) -> Result<()> {
        match self {
            Self::Fmt => {
                component("fmt", "rustfmt")?;
                cargo(&["fmt", "--all", "--check"], None)
            }
            Self::Clippy => {
                component("clippy", "clippy")?;
                // --all-targets omits benchmarks that `cargo bench` does not run.
                let targets = ["--lib", "--bins", "--tests", "--examples", "--bench", "*"];
                let clippy = ["clippy", "--workspace", "--quiet"];
                cargo(&[&clippy[..], &targets, &["--", "-D", "warnings"]].concat(), None)
            }
            Self::Aarch64 => {
                if !succeeds(Command::new(rustup_program()).args(["target", "add", AARCH64])) {
                    bail!("rustup cannot get the target {AARCH64} here");
                }
                let packages = ["--package", "pm-core", "--package", "pmbd-ublk"];
                cargo(&[&["check", "--quiet", "--target", AARCH64][..], &packages].concat(), None)
            }
            Self::Tidy => match tidy::run()? {
                ExitCode::SUCCESS => Ok(()),
                _ => bail!("violations of the house rules are listed above"),
            },
            Self::Tests => {
                apt::ensure(&[NEEDS.to_vec(), Vm::needs()].concat())?;
                // Includes doc tests.
                tests(&["test", "--workspace", "--no-fail-fast"], deep.then_some(DEPTH))
            }
            Self::Loom => {
                // In its own directory, because the flag applies to all crates.
                let test = [
                    "test",
                    "--package",
                    "pm-core",
                    "--package",
                    "pm-alloc",
                    "--package",
                    "pm-btree",
                    "--lib",
                ];
                // The tests of roots, headers, dirty pages, the log, the space and the frames of leaves. Others do not support loom and would fail.
                let models = ["--target-dir", "target/loom", "--", "loom_", "interleaved"];
                cargo(&[&test[..], &models].concat(), Some(("RUSTFLAGS", "--cfg loom")))
            }
            Self::Teeth => match teeth::run(&teeth::Args::default())? {
                ExitCode::SUCCESS => Ok(()),
                _ => bail!("redundant flushes and fences, or missing tests, are listed above"),
            },
            Self::Docs => {
                cargo(&["doc", "--workspace", "--no-deps", "--quiet"], Some(("RUSTDOCFLAGS", "-D warnings")))
            }
            Self::FsSuites => fs_suites::run(),
        }
    }
}

impl Outcome {
    fn line(&self) -> String {
        let result = if self.result.is_ok() { "ok" } else { "FAILED" };
        format!("{:<7} {result:<8}{:>7.1} s", self.step.name(), self.duration.as_secs_f64())
    }
}

/// A line for each outcome, and their number.
fn table(outcomes: &[Outcome]) -> String {
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let lines: String = outcomes.iter().map(|outcome| outcome.line() + "\n").collect();
    let (good, all) = (outcomes.len() - failed, outcomes.len());
    format!("{lines}{good} of {all} steps passed")
}

/// Runs cargo in the repository's root, with inherited output.
fn cargo(arguments: &[&str], variable: Option<(&str, &str)>) -> Result<()> {
    let mut command = cargo_command();
    command.args(arguments).envs(variable).current_dir(root());
    let status = command.status().into_diagnostic().wrap_err("cannot run cargo")?;
    if !status.success() {
        bail!("cargo {} failed: {status}", arguments.join(" "));
    }
    Ok(())
}

/// Runs cargo as [`cargo`] does, and then lists the slowest test programs.
fn tests(arguments: &[&str], variable: Option<(&str, &str)>) -> Result<()> {
    let (output, writer) = io::pipe().into_diagnostic()?;
    let mut command = cargo_command();
    command.args(arguments).envs(variable).current_dir(root());
    let mut child = command
        .stdout(writer.try_clone().into_diagnostic()?)
        .stderr(writer)
        .spawn()
        .into_diagnostic()
        .wrap_err("cannot run cargo")?;
    // Closes the write end here, so that the output ends.
    drop(command);
    let mut times = Times::default();
    let (mut output, mut line) = (BufReader::new(output), Vec::new());
    while output.read_until(b'\n', &mut line).into_diagnostic()? > 0 {
        io::stdout().write_all(&line).into_diagnostic()?;
        times.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    let status = child.wait().into_diagnostic()?;
    println!("{}", times.slowest());
    if !status.success() {
        bail!("cargo {} failed: {status}", arguments.join(" "));
    }
    Ok(())
}

/// How long test programs have run.
#[derive(Debug, Default)]
struct Times {
    /// The crate whose tests run.
    package: String,
    /// The program that runs.
    current: String,
    seconds: Vec<(f64, String)>,
}

impl Times {
    /// Reads a line of the output of `cargo test`.
    fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(program) = line.strip_prefix("Running ") {
            let (source, built) = program.rsplit_once(" (").unwrap_or((program, ""));
            // A crate's unit tests come first, and only they name it.
            if source.starts_with("unittests ") {
                let built = built.rsplit_once('/').map_or("", |(_, name)| name);
                built.rsplit_once('-').map_or("", |(name, _)| name).clone_into(&mut self.package);
            }
            self.current = format!("{}: {source}", self.package);
        } else if let Some(package) = line.strip_prefix("Doc-tests ") {
            self.current = format!("{package}: doc tests");
        } else if line.starts_with("test result: ")
            && let Some((_, seconds)) = line.rsplit_once("finished in ")
            && let Ok(seconds) = seconds.trim_end_matches('s').parse()
        {
            self.seconds.push((seconds, self.current.clone()));
        }
    }

    /// The slowest test programs, a line each.
    fn slowest(mut self) -> String {
        self.seconds.sort_by(|one, other| other.0.total_cmp(&one.0));
        let lines = self.seconds.iter().take(SLOWEST);
        let lines: String =
            lines.map(|(seconds, program)| format!("{seconds:>9.1} s  {program}\n")).collect();
        format!("\nslowest test programs:\n{lines}")
    }
}

/// Installs the toolchain's component for `subcommand`, which rustup's minimal profile omits.
fn component(subcommand: &str, component: &str) -> Result<()> {
    let is_installed = || {
        let mut command = cargo_command();
        succeeds(command.args([subcommand, "--version"]).current_dir(root()).stderr(Stdio::null()))
    };
    if is_installed() {
        return Ok(());
    }
    eprintln!("adding {component} to the toolchain");
    let is_added = succeeds(Command::new(rustup_program()).args(["component", "add", component]));
    if !is_added || !is_installed() {
        bail!(
            help = format!("rustup component add {component}"),
            "cargo {subcommand} is required, and rustup could not add it"
        );
    }
    Ok(())
}

/// The path of rustup, on `PATH` or in cargo's directory.
fn rustup_program() -> PathBuf {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    apt::find("rustup").or_else(|| Some(home?.join("bin/rustup"))).unwrap_or_else(|| "rustup".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn steps(arguments: &[&str]) -> Option<Vec<Step>> {
        Cli::try_parse_from([&["test"], arguments].concat()).ok().map(|cli| cli.args.steps)
    }

    #[test]
    fn steps_are_chosen_by_name() {
        assert_eq!(steps(&[]), Some(vec![]));
        assert_eq!(steps(&["tidy", "clippy"]), Some(vec![Step::Tidy, Step::Clippy]));
        assert_eq!(steps(&["vm"]), None);
        for &step in Step::value_variants() {
            assert_eq!(steps(&[&step.name()]), Some(vec![step]));
        }
    }

    #[test]
    fn table_counts_failed_steps() {
        let outcome = |step, result| Outcome { step, result, duration: Duration::from_millis(1500) };
        let outcomes = [outcome(Step::Fmt, Ok(())), outcome(Step::Docs, Err(miette::miette!("no")))];
        assert_eq!(
            table(&outcomes),
            "fmt     ok          1.5 s\ndocs    FAILED      1.5 s\n1 of 2 steps passed"
        );
    }

    #[test]
    fn slowest_programs_are_listed() {
        let mut times = Times::default();
        for line in [
            "   Compiling pm-fs v0.1.0\n",
            "     Running unittests src/lib.rs (target/debug/deps/pm_fs-67dad783a4b08765)\n",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s\n",
            "     Running tests/library/main.rs (target/debug/deps/library-e6f0b37c44ccbce3)\n",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 62.00s\n",
            "   Doc-tests pm_fs\n",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n",
        ] {
            times.read(line);
        }
        assert_eq!(
            times.slowest(),
            "\nslowest test programs:\n     62.0 s  pm_fs: tests/library/main.rs\n      1.0 s  pm_fs: doc tests\n      \
             0.5 s  pm_fs: unittests src/lib.rs\n"
        );
    }

    #[test]
    fn failing_cargo_fails_step() {
        assert!(cargo(&["--version", "--quiet"], None).is_ok());
        assert!(cargo(&["no-such-command"], None).is_err());
    }
}
