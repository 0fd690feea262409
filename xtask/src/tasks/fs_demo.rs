//! `./x pmfs demo`: a file system in persistent memory does a day's work, and survives the kill of its server, in a few minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, bail, ensure};
use xtask::apt::{self, Need};
use xtask::cargo;

/// What the demonstration runs.
const NEEDS: [Need; 2] = [Need::new("git", "git"), Need::new("fusermount3", "fuse3")];

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
    ensure!(
        fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok(),
        "mounting needs /dev/fuse, which this user cannot open"
    );
    println!("Building pmfs in the release profile.");
    let program = cargo::build("pmfs", &["--bin", "pmfs", "--release"], "pmfs")?;
    // In memory if possible: in a file on a disk each fence is an msync.
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
    let directory = tempfile::tempdir_in(parent).into_diagnostic()?;
    let mut demo = Demo {
        program,
        file: directory.path().join("files.pm"),
        mount: directory.path().join("mount"),
        server: None,
    };
    demo.steps()?;
    println!("\nThis took {:.0} s.", begin.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

struct Demo {
    program: PathBuf,
    file: PathBuf,
    mount: PathBuf,
    server: Option<Child>,
}

impl Drop for Demo {
    /// After an error.
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().ok();
            server.wait().ok();
            Command::new("umount").arg("-l").arg(&self.mount).stderr(Stdio::null()).status().ok();
        }
    }
}

impl Demo {
    fn steps(&mut self) -> Result<()> {
        fs::create_dir(&self.mount).into_diagnostic()?;
        println!("\nA file system of {SIZE} is created and mounted.");
        self.pmfs(&["mkfs", "--size", SIZE])?;
        self.start()?;

        println!("\nThis repository is cloned into it, and a crate is built there.");
        let repository = self.mount.join("repository");
        let clone = ["clone", "--quiet", "--no-hardlinks"];
        show(Command::new("git").args(clone).arg(cargo::root()).arg(&repository))?;
        self.build("first", "pm-core")?;

        println!("\nUnmounted, checked, and mounted again.");
        self.stop()?;
        self.pmfs(&["fsck"])?;
        self.start()?;
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
        let mut server = self.server.take().expect("it was started");
        let (killed, ended) = (server.kill(), server.wait());
        killed.and(ended).into_diagnostic()?;
        let ended = build.wait().into_diagnostic()?;
        ensure!(!ended.success(), "the build has succeeded without its file system");

        println!("\nChecked, mounted again, and the build is completed.");
        self.pmfs(&["fsck"])?;
        self.start()?;
        self.git_fsck()?;
        self.build("second", "pm-core")?;
        self.stop()?;
        self.pmfs(&["fsck"])?;
        self.pmfs(&["info"])
    }

    /// Runs a command of pmfs on the file.
    fn pmfs(&self, arguments: &[&str]) -> Result<()> {
        show(Command::new(&self.program).args(arguments).arg(&self.file))
    }

    fn start(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("mount").arg(&self.file).arg(&self.mount).stdout(Stdio::piped());
        println!("$ {}", line(&command));
        let mut server = command.spawn().into_diagnostic()?;
        let mut said = String::new();
        let out = server.stdout.take().expect("it is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).into_diagnostic()?;
        print!("{said}");
        self.server = Some(server);
        ensure!(said.contains("mounted"), "pmfs mount failed");
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        show(Command::new(&self.program).arg("umount").arg(&self.mount))?;
        let mut server = self.server.take().expect("it was started");
        let ended = server.wait().into_diagnostic()?;
        ensure!(ended.success(), "the server has ended with {ended}");
        Ok(())
    }

    fn cargo_build(&self, target: &str, package: &str) -> Command {
        let mut command = cargo::command();
        command.args(["build", "--quiet", "--offline", "--package", package, "--target-dir"]);
        command.arg(self.mount.join(target)).current_dir(self.mount.join("repository"));
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
        show(Command::new("git").args(["fsck", "--no-progress"]).current_dir(self.mount.join("repository")))
    }

    /// The number of files that a build has made.
    fn files_of(&self, target: &str) -> usize {
        count_files(&self.mount.join(target))
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

/// Prints and runs a command, which must succeed.
fn show(command: &mut Command) -> Result<()> {
    println!("$ {}", line(command));
    let status = command.status().into_diagnostic().wrap_err_with(|| line(command))?;
    if !status.success() {
        bail!("{} ended with {status}", line(command));
    }
    Ok(())
}

/// A command as it is typed, without the directories of its program.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let words = command.get_args().map(|word| word.to_string_lossy());
    [program].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}
