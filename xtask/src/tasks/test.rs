//! `cargo xtask test`: everything that CI runs, on any machine.
//!
//! A step that fails does not keep the others from running: one run tells all that is wrong. The quick steps
//! come first.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use miette::{IntoDiagnostic, Result, WrapErr, bail};
use xtask::apt::{self, Need};
use xtask::cargo::{command as cargo_command, root};
use xtask::vm::Vm;

use super::{teeth, tidy};

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these steps [default: all].
    #[arg(value_enum)]
    steps: Vec<Step>,
}

/// What CI runs, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// The code is formatted.
    Fmt,
    /// The compiler and clippy have nothing to say.
    Clippy,
    /// The code compiles for aarch64 too, where rustup can get that target.
    Aarch64,
    /// The house rules hold.
    Tidy,
    /// All tests: unit, integration, property and doc tests, and those on a real kernel.
    Tests,
    /// Threads of the log, the space and the roots in every order, by loom.
    Loom,
    /// The tests have teeth: each flush and fence that they come by is missed when it is gone.
    Teeth,
    /// The documentation builds without warnings.
    Docs,
}

/// The other architecture that pm-core knows.
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// The programs that tests run, beside those of the guest.
const NEEDS: [Need; 14] = [
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
    Need::new("nbdcopy", "libnbd-bin"),
    Need::new("nbdinfo", "libnbd-bin"),
    Need::new("nbdkit", "nbdkit"),
];

/// How a step ended.
struct Outcome {
    step: Step,
    result: Result<()>,
    duration: Duration,
}

/// Runs the steps and prints a table of how they ended; success when all did well.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let wanted = |step: &Step| args.steps.is_empty() || args.steps.contains(step);
    let mut outcomes = Vec::new();
    for &step in Step::value_variants().iter().filter(|step| wanted(step)) {
        println!("\n==> {}: {}", step.name(), step.about());
        let start = Instant::now();
        let result = step.run();
        let outcome = Outcome { step, result, duration: start.elapsed() };
        if let Err(report) = &outcome.result {
            eprintln!("{report:?}");
        }
        println!("<== {}", outcome.line());
        outcomes.push(outcome);
    }
    println!("\n{}", table(&outcomes));
    let good = outcomes.iter().all(|outcome| outcome.result.is_ok());
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Step {
    /// Its name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn about(self) -> &'static str {
        match self {
            Self::Fmt => "cargo fmt --all --check",
            Self::Clippy => "cargo clippy --workspace, all targets, warnings are errors",
            Self::Aarch64 => "cargo check for aarch64",
            Self::Tidy => "the house rules",
            Self::Tests => "cargo test --workspace, on a real kernel too",
            Self::Loom => "cargo test with --cfg loom",
            Self::Teeth => "without each flush and fence in turn, a test fails",
            Self::Docs => "cargo doc --workspace, warnings are errors",
        }
    }

    fn run(self) -> Result<()> {
        match self {
            Self::Fmt => {
                component("fmt", "rustfmt")?;
                cargo(&["fmt", "--all", "--check"], None)
            }
            Self::Clippy => {
                component("clippy", "clippy")?;
                // Not --all-targets, which leaves out what `cargo bench` does not run.
                let targets = ["--lib", "--bins", "--tests", "--examples", "--bench", "*"];
                let clippy = ["clippy", "--workspace", "--quiet"];
                cargo(&[&clippy[..], &targets, &["--", "-D", "warnings"]].concat(), None)
            }
            Self::Aarch64 => {
                let added = Command::new(rustup_program()).args(["target", "add", AARCH64]).status();
                if !added.is_ok_and(|status| status.success()) {
                    bail!("rustup cannot get the target {AARCH64} here");
                }
                let packages = ["--package", "pm-core", "--package", "pmbd-ublk"];
                cargo(&[&["check", "--quiet", "--target", AARCH64][..], &packages].concat(), None)
            }
            Self::Tidy => match tidy::run()? {
                ExitCode::SUCCESS => Ok(()),
                _ => bail!("the house rules are broken; each place is named above"),
            },
            Self::Tests => {
                apt::ensure(&[NEEDS.to_vec(), Vm::needs()].concat())?;
                // Doc tests are among them.
                cargo(&["test", "--workspace", "--no-fail-fast"], None)
            }
            Self::Loom => {
                // In a directory of its own: everything is built anew for this flag.
                let test = ["test", "--package", "pm-core", "--package", "pm-alloc", "--lib"];
                // Those of roots, of headers, of the log and of the space; the others know nothing of loom, and would fail.
                let models = ["--target-dir", "target/loom", "--", "loom_", "interleaved"];
                cargo(&[&test[..], &models].concat(), Some(("RUSTFLAGS", "--cfg loom")))
            }
            Self::Teeth => match teeth::run(&teeth::Args::default())? {
                ExitCode::SUCCESS => Ok(()),
                _ => bail!("a flush or fence is redundant, or a test is missing; each is named above"),
            },
            Self::Docs => {
                cargo(&["doc", "--workspace", "--no-deps", "--quiet"], Some(("RUSTDOCFLAGS", "-D warnings")))
            }
        }
    }
}

impl Outcome {
    fn line(&self) -> String {
        let result = if self.result.is_ok() { "ok" } else { "FAILED" };
        format!("{:<8}{result:<8}{:>7.1} s", self.step.name(), self.duration.as_secs_f64())
    }
}

/// The outcomes, a line each, and what they come to.
fn table(outcomes: &[Outcome]) -> String {
    let total: Duration = outcomes.iter().map(|outcome| outcome.duration).sum();
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let lines: String = outcomes.iter().map(|outcome| outcome.line() + "\n").collect();
    let (good, all) = (outcomes.len() - failed, outcomes.len());
    format!("{lines}{good} of {all} steps passed in {:.1} s", total.as_secs_f64())
}

/// Runs cargo in the repository's root. Its words, and those of the tests, are the user's to see.
fn cargo(arguments: &[&str], variable: Option<(&str, &str)>) -> Result<()> {
    let mut command = cargo_command();
    command.args(arguments).envs(variable).current_dir(root());
    let status = command.status().into_diagnostic().wrap_err("cannot run cargo")?;
    if !status.success() {
        bail!("cargo {} failed: {status}", arguments.join(" "));
    }
    Ok(())
}

/// Makes sure that cargo has `subcommand`, which rustup's smallest installation leaves out.
fn component(subcommand: &str, component: &str) -> Result<()> {
    let is_there = || {
        let mut command = cargo_command();
        let command = command.args([subcommand, "--version"]).current_dir(root());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if is_there() {
        return Ok(());
    }
    eprintln!("adding {component} to the toolchain");
    let added =
        Command::new(rustup_program()).args(["component", "add", component]).stdout(Stdio::null()).status();
    if !added.is_ok_and(|status| status.success()) || !is_there() {
        bail!(
            help = format!("rustup component add {component}"),
            "cargo {subcommand} is needed, and rustup could not add it"
        );
    }
    Ok(())
}

/// rustup, on `PATH` or where its installer puts it.
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
            "fmt     ok          1.5 s\ndocs    FAILED      1.5 s\n1 of 2 steps passed in 3.0 s"
        );
    }

    #[test]
    fn failing_cargo_fails_step() {
        assert!(cargo(&["--version", "--quiet"], None).is_ok());
        assert!(cargo(&["no-such-command"], None).is_err());
    }
}
