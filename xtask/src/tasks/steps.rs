//! The steps of `cargo xtask test`.

use std::env;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use miette::{IntoDiagnostic, Result, WrapErr, bail, ensure};
use rustix::process::{Pid, setpriority_process};
use xtask::apt::{self, Need};
use xtask::cargo::{command as cargo_command, root};
use xtask::process::succeeds;
use xtask::programs::{Program, build, packages};
use xtask::suite::Suite;
use xtask::teeth::{Blobs, Campaign, Selection};
use xtask::vm::Vm;

use super::{fs_suites, tidy};

/// The steps of CI, in this order, and others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// cargo fmt --all --check.
    Fmt,
    /// cargo clippy --workspace, all targets; warnings are errors.
    Clippy,
    /// cargo check for aarch64.
    Aarch64,
    /// The house rules.
    Tidy,
    /// Unit, integration, property, crash and doc tests of the workspace.
    Tests,
    /// Three nodes of `pm store serve` with kills, stops and cut links: what their clients see is linearizable. PM_REPLICATED_OPERATIONS, PM_REPLICATED_SEED.
    Replicated,
    /// Tests on a real kernel.
    Kernel,
    /// DRBD, and md over NVMe over TCP, mirror the block device between two guests: power cuts, cut cables, disks that fail. Without --deep only on request.
    ReplicatedDevice,
    /// cargo doc --workspace; warnings are errors.
    Docs,
    /// Interleavings of threads in the log, the space, the roots and the leaves of a store, by loom.
    Loom,
    /// Without any one flush or fence, a test fails.
    Teeth,
    /// pjdfstest, fsx, fio, dbench, postmark, stress-ng and SQLite on a mounted file system, and xfstests from the directory PM_XFSTESTS. Not in CI.
    FsSuites,
}

/// The other architecture of pm-core.
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// The test programs that boot guests.
const KERNEL: [(&str, &str); 2] =
    [("xtask", "tests/vm_boot.rs"), ("pm-system-tests", "tests/kernel/main.rs")];
/// The test on a real kernel that runs without `--deep`: a disk on a DAX file, served over ublk, with ext4 and XFS on it.
const ONE_KERNEL_TEST: &str = "file_systems_and_a_verified_load_on_a_dax_file";

/// The test program that boots two guests at a time.
const REPLICATED_DEVICE: (&str, &str) = ("pm-system-tests", "tests/replicated_device/main.rs");

/// The test program that checks replicated stores from outside.
const REPLICATED: (&str, &str) = ("pm-cli", "tests/linearizable/main.rs");

/// Where Go is, if it is not on `PATH`.
const GO: &str = "/usr/local/go/bin/go";

/// The niceness of a step beside another: the other takes longer, and leaves a processor idle while a guest runs.
const NICENESS: i32 = 5;

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

/// What steps share.
#[derive(Debug)]
pub(crate) struct Context {
    deep: bool,
    /// The files whose flushes and fences have all been tried.
    tried: OnceLock<Blobs>,
}

impl Context {
    /// The context of steps that do everything, if `deep`.
    pub(crate) const fn new(deep: bool) -> Self {
        Self { deep, tried: OnceLock::new() }
    }

    /// The files whose flushes and fences have all been tried; `None` if only some files' have.
    pub(crate) fn tried(&self) -> Option<&Blobs> {
        self.tried.get()
    }
}

/// Where a step's output goes.
#[derive(Debug)]
pub(crate) enum Output {
    /// To the standard output and the standard error of this process.
    Inherited,
    /// To a file, because another step runs at the same time. Its processes are nice.
    Captured(Result<File, String>),
}

impl Output {
    /// Output to a file without a name.
    pub(crate) fn captured() -> Self {
        Self::Captured(tempfile::tempfile().map_err(|error| error.to_string()))
    }

    /// The captured text.
    pub(crate) fn text(&self) -> Result<String> {
        let Self::Captured(_) = self else { return Ok(String::new()) };
        let (mut file, mut bytes) = (self.file()?, Vec::new());
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).into_diagnostic()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn file(&self) -> Result<File> {
        match self {
            Self::Inherited => Ok(File::from(io::stdout().as_fd().try_clone_to_owned().into_diagnostic()?)),
            Self::Captured(Ok(file)) => file.try_clone().into_diagnostic(),
            Self::Captured(Err(error)) => bail!("cannot capture the output: {error}"),
        }
    }

    fn print(&self, text: &str) -> Result<()> {
        writeln!(self.file()?, "{text}").into_diagnostic()
    }

    /// Runs cargo in the repository's root.
    fn cargo(&self, arguments: &[&str], variable: Option<(&str, &str)>) -> Result<()> {
        let mut command = cargo_command();
        command.args(arguments).envs(variable).current_dir(root());
        if let Self::Captured(_) = self {
            command.stdout(self.file()?).stderr(self.file()?);
        }
        let mut child = command.spawn().into_diagnostic().wrap_err("cannot run cargo")?;
        if let Self::Captured(_) = self {
            setpriority_process(Some(Pid::from_child(&child)), NICENESS).into_diagnostic()?;
        }
        let status = child.wait().into_diagnostic()?;
        ensure!(status.success(), "cargo {} failed: {status}", arguments.join(" "));
        Ok(())
    }
}

impl Step {
    /// Its name and description on the command line.
    fn value(self) -> PossibleValue {
        self.to_possible_value().expect("no step is hidden")
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.value().get_name().to_owned()
    }

    /// What it does, in one line.
    pub(crate) fn about(self) -> String {
        self.value().get_help().map_or_else(String::new, ToString::to_string)
    }

    /// The step beside which it runs, if that runs. Teeth use what the tests have recorded, and guests use only one processor.
    pub(crate) const fn beside(self) -> Option<Self> {
        match self {
            Self::Docs | Self::Loom => Some(Self::Tests),
            Self::Teeth => Some(Self::Kernel),
            _ => None,
        }
    }

    /// Why it does not run unless it is named; `None` if it does run.
    pub(crate) const fn left_out(self, deep: bool) -> Option<&'static str> {
        match self {
            Self::FsSuites => Some("other projects' suites"),
            Self::ReplicatedDevice if !deep => Some("the block device in two machines"),
            _ => None,
        }
    }

    /// Runs it, and returns what has run and what was left out.
    pub(crate) fn run(self, context: &Context, output: &Output) -> Result<String> {
        let nothing = Ok(String::new());
        match self {
            Self::Fmt => {
                component("fmt", "rustfmt")?;
                output.cargo(&["fmt", "--all", "--check"], None).and(nothing)
            }
            Self::Clippy => {
                component("clippy", "clippy")?;
                // --all-targets omits benchmarks that `cargo bench` does not run.
                let targets = ["--lib", "--bins", "--tests", "--examples", "--bench", "*"];
                let clippy = ["clippy", "--workspace", "--quiet"];
                output.cargo(&[&clippy[..], &targets, &["--", "-D", "warnings"]].concat(), None).and(nothing)
            }
            Self::Aarch64 => {
                if !succeeds(Command::new(rustup_program()).args(["target", "add", AARCH64])) {
                    bail!("rustup cannot get the target {AARCH64} here");
                }
                let packages = ["--package", "pm-core", "--package", "pmbd-ublk"];
                let check = ["check", "--quiet", "--target", AARCH64];
                output.cargo(&[&check[..], &packages].concat(), None).and(nothing)
            }
            Self::Tidy => match tidy::run()? {
                ExitCode::SUCCESS => nothing,
                _ => bail!("violations of the house rules are listed above"),
            },
            Self::Tests => tests(output),
            Self::Replicated => replicated(output),
            Self::Kernel => kernel(context.deep, output),
            Self::ReplicatedDevice => replicated_device(output),
            Self::Docs => {
                let doc = ["doc", "--workspace", "--no-deps", "--quiet"];
                output.cargo(&doc, Some(("RUSTDOCFLAGS", "-D warnings"))).and(nothing)
            }
            Self::Loom => loom(output).and(nothing),
            Self::Teeth => teeth(context, output),
            Self::FsSuites => fs_suites::run().and(nothing),
        }
    }
}

/// All tests but those on a real kernel, in one guest or two, and the outside check of replicated stores.
fn tests(output: &Output) -> Result<String> {
    apt::ensure(&[NEEDS.to_vec(), Vm::needs()].concat())?;
    let elsewhere = |program: &Program| {
        boots_guests(program) || is_at(program, REPLICATED_DEVICE) || is_at(program, REPLICATED)
    };
    let suite = Suite::build(root(), |program| !elsewhere(program))?;
    let mut summary = suite.run()?;
    let documentation = output.cargo(&["test", "--workspace", "--doc", "--quiet"], None);
    if documentation.is_err() {
        summary.failed.push("documentation tests".to_owned());
    }
    output.print(&format!("\n{}", summary.describe()))?;
    ensure!(summary.failed.is_empty(), "{} of the tests have failed", summary.failed.len());
    Ok(format!("{} tests, and those in the documentation", summary.passed))
}

/// The tests on a real kernel, or one of them.
fn kernel(deep: bool, output: &Output) -> Result<String> {
    apt::ensure(&[NEEDS.to_vec(), Vm::needs()].concat())?;
    let programs = build(root(), &packages(root())?)?;
    let (mut count, mut ran, mut failed) = (0, 0, Vec::new());
    for program in programs.iter().filter(|program| boots_guests(program)) {
        let tests = program.tests()?;
        count += tests.len();
        let filters = if deep { vec![] } else { vec![ONE_KERNEL_TEST.to_owned()] };
        if !deep && !tests.iter().any(|test| test.contains(ONE_KERNEL_TEST)) {
            continue;
        }
        ran += 1;
        output.print(&format!("     Running {}", program.describe()))?;
        if !program.run_all(&filters, &output.file()?)?.success() {
            failed.push(program.describe());
        }
    }
    ensure!(count > 0, "there are no tests on a real kernel");
    // It may have been renamed: then none would run.
    ensure!(ran > 0, "there is no test {ONE_KERNEL_TEST}");
    ensure!(failed.is_empty(), "tests of {} have failed", failed.join(" and "));
    Ok(if deep {
        format!("{count} tests")
    } else {
        format!("1 of {count} tests; all: ./x test --deep kernel")
    })
}

fn boots_guests(program: &Program) -> bool {
    KERNEL.iter().any(|place| is_at(program, *place))
}

fn is_at(program: &Program, (package, source): (&str, &str)) -> bool {
    program.package.name == package && program.source == source
}

/// Runs one test program, one test after the other, and returns how many it has.
fn one_program(place: (&str, &str), output: &Output) -> Result<usize> {
    let mut packages = packages(root())?;
    packages.retain(|package| package.name == place.0);
    let programs = build(root(), &packages)?;
    let program = programs.iter().find(|program| is_at(program, place));
    let Some(program) = program else { bail!("there is no test program {}", place.1) };
    let count = program.tests()?.len();
    ensure!(count > 0, "{} has no tests", program.describe());
    let arguments = ["--test-threads=1", "--nocapture"].map(str::to_owned);
    let status = program.run_all(&arguments, &output.file()?)?;
    ensure!(status.success(), "{}: {status}", program.describe());
    Ok(count)
}

/// The block device in two guests. The test program installs the tools of replication itself.
fn replicated_device(output: &Output) -> Result<String> {
    apt::ensure(&[NEEDS.to_vec(), Vm::needs()].concat())?;
    Ok(format!("{} tests", one_program(REPLICATED_DEVICE, output)?))
}

/// The outside check of replicated stores. Each test has a cluster of its own.
fn replicated(output: &Output) -> Result<String> {
    one_program(REPLICATED, output)?;
    let has_go = apt::find("go").is_some() || Path::new(GO).is_file();
    Ok(match has_go {
        true => "by Porcupine and a checker in Rust".to_owned(),
        false => "by the checker in Rust alone; Go is not on this machine, which Porcupine needs".to_owned(),
    })
}

fn loom(output: &Output) -> Result<()> {
    let packages =
        ["pm-core", "pm-alloc", "pm-btree", "pm-objects"].iter().flat_map(|package| ["--package", package]);
    let packages: Vec<&str> = packages.chain(["--lib"]).collect();
    // The tests of roots, headers, dirty pages, the log, the space and the frames of leaves. Others do not support loom and would fail.
    // In a directory of their own, because the flag applies to all crates.
    let models = ["--target-dir", "target/loom", "--", "loom_", "interleaved"];
    output.cargo(&[&["test"][..], &packages, &models].concat(), Some(("RUSTFLAGS", "--cfg loom")))
}

/// Teeth in all files, or in those that have changed.
fn teeth(context: &Context, output: &Output) -> Result<String> {
    let mut packages = packages(root())?;
    packages.retain(|package| package.can_simulate);
    let selection = if context.deep { Selection::All } else { Selection::Changed };
    let campaign = Campaign::new(root(), &packages, &selection, &|_, _, _| ())?;
    let report = campaign.run(&|_, _, _| ())?;
    output.print(&report.to_string())?;
    ensure!(report.is_good(), "redundant flushes and fences, or missing tests, are listed above");
    let sites = report.tried.len();
    if context.deep {
        let note = format!("{sites} flushes and fences");
        context.tried.get_or_init(|| campaign.files().clone());
        return Ok(note);
    }
    let files = campaign.files().len();
    Ok(format!("{sites} flushes and fences in {files} files that have changed; all: ./x test --deep teeth"))
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

    #[test]
    fn failing_cargo_fails_step() {
        assert!(Output::Inherited.cargo(&["--version", "--quiet"], None).is_ok());
        let output = Output::captured();
        assert!(output.cargo(&["no-such-command"], None).is_err());
        assert!(output.text().expect("captured").contains("no-such-command"));
    }
}
