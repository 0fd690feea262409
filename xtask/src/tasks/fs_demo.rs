//! `./x pmfs demo`: a file system in persistent memory does a day's work, and survives the kill of its server, in a few minutes.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, ensure};
use xtask::apt::{self, Need};
use xtask::cargo;

use super::mounted::{Mounted, show};

/// What the demonstration runs.
const NEEDS: [Need; 1] = [Need::new("git", "git")];

/// The size of the file system: a clone of this repository, and two builds in it.
const SIZE: &str = "3G";

/// The server is killed when the second build has made so many files.
const FILES_BEFORE_KILL: usize = 100;

/// The longest time that a build takes to make these files.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs the demonstration.
pub(crate) fn run() -> Result<ExitCode> {
    let begin = Instant::now();
    apt::ensure(&NEEDS)?;
    println!("A file system of {SIZE} is created and mounted.");
    let mut demo = Demo(Mounted::new(SIZE)?);
    demo.steps()?;
    println!("\nThis took {:.0} s.", begin.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

struct Demo(Mounted);

impl Demo {
    fn steps(&mut self) -> Result<()> {
        self.0.start()?;

        println!("\nThis repository is cloned into it, and a crate is built there.");
        let repository = self.0.mount.join("repository");
        let clone = ["clone", "--quiet", "--no-hardlinks"];
        show(Command::new("git").args(clone).arg(cargo::root()).arg(&repository))?;
        self.build("first", "pm-core")?;

        println!("\nUnmounted, checked, and mounted again.");
        self.0.stop()?;
        self.0.pmfs(&["fsck"])?;
        self.0.start()?;
        self.git_fsck()?;

        println!("\nA second build: the server is killed in the middle.");
        let mut build =
            self.cargo_build("second", "pm-core").stderr(Stdio::null()).spawn().into_diagnostic()?;
        let waiting = Instant::now();
        while self.files_of("second") < FILES_BEFORE_KILL {
            ensure!(build.try_wait().into_diagnostic()?.is_none(), "the build has ended before the kill");
            ensure!(waiting.elapsed() < PATIENCE, "the build makes no progress");
            thread::sleep(Duration::from_millis(50));
        }
        println!("$ kill -9 # the server, after {} files", self.files_of("second"));
        self.0.kill()?;
        let ended = build.wait().into_diagnostic()?;
        ensure!(!ended.success(), "the build has succeeded without its file system");

        println!("\nChecked, mounted again, and the build is completed.");
        self.0.pmfs(&["fsck"])?;
        self.0.start()?;
        self.git_fsck()?;
        self.build("second", "pm-core")?;
        self.0.stop()?;
        self.0.pmfs(&["fsck"])?;
        self.0.pmfs(&["info"])
    }

    fn cargo_build(&self, target: &str, package: &str) -> Command {
        let mut command = cargo::command();
        command.args(["build", "--quiet", "--offline", "--package", package, "--target-dir"]);
        command.arg(self.0.mount.join(target)).current_dir(self.0.mount.join("repository"));
        command
    }

    /// Builds a package of the clone, with its results in the file system too.
    fn build(&self, target: &str, package: &str) -> Result<()> {
        let begin = Instant::now();
        show(&mut self.cargo_build(target, package))?;
        println!("built in {:.0} s, {} files", begin.elapsed().as_secs_f64(), self.files_of(target));
        Ok(())
    }

    fn git_fsck(&self) -> Result<()> {
        show(Command::new("git").args(["fsck", "--no-progress"]).current_dir(self.0.mount.join("repository")))
    }

    /// The number of files that a build has made.
    fn files_of(&self, target: &str) -> usize {
        count_files(&self.0.mount.join(target))
    }
}

/// The files below a directory. One that is removed meanwhile has none.
fn count_files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => count_files(&entry.path()),
        _ => 1,
    };
    entries.map(count).sum()
}
