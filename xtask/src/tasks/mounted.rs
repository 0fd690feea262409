//! A file system that a server of pmfs has mounted, for tasks.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr, bail, ensure};
use tempfile::TempDir;
use xtask::apt::{self, Need};
use xtask::cargo;

/// What mounting needs.
const NEED: Need = Need::new("fusermount3", "fuse3");

/// A file with a file system, in a directory of its own, and its server.
pub(super) struct Mounted {
    pub(super) program: PathBuf,
    pub(super) file: PathBuf,
    /// Where it is mounted.
    pub(super) mount: PathBuf,
    server: Option<Child>,
    _directory: TempDir,
}

impl Drop for Mounted {
    /// After an error.
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().ok();
            server.wait().ok();
            Command::new("umount").arg("-l").arg(&self.mount).stderr(Stdio::null()).status().ok();
        }
    }
}

impl Mounted {
    /// Builds pmfs, and makes a file system of this size. It is not mounted yet.
    pub(super) fn new(size: &str) -> Result<Self> {
        apt::ensure(&[NEED])?;
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
        let (file, mount) = (directory.path().join("files.pm"), directory.path().join("mount"));
        fs::create_dir(&mount).into_diagnostic()?;
        let mounted = Self { program, file, mount, server: None, _directory: directory };
        mounted.pmfs(&["mkfs", "--size", size])?;
        Ok(mounted)
    }

    /// Runs a command of pmfs on the file.
    pub(super) fn pmfs(&self, arguments: &[&str]) -> Result<()> {
        show(Command::new(&self.program).args(arguments).arg(&self.file))
    }

    /// Mounts the file system.
    pub(super) fn start(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["mount", "-f"]).arg(&self.file).arg(&self.mount).stdout(Stdio::piped());
        println!("$ {}", line(&command));
        let mut server = command.spawn().into_diagnostic()?;
        let mut said = String::new();
        let out = server.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut said).into_diagnostic()?;
        print!("{said}");
        self.server = Some(server);
        ensure!(said.contains("mounted"), "pmfs mount failed");
        Ok(())
    }

    /// Unmounts it.
    pub(super) fn stop(&mut self) -> Result<()> {
        show(Command::new(&self.program).arg("umount").arg(&self.mount))?;
        let mut server = self.server.take().expect("it was started");
        let ended = server.wait().into_diagnostic()?;
        ensure!(ended.success(), "the server has ended with {ended}");
        Ok(())
    }

    /// Kills the server.
    pub(super) fn kill(&mut self) -> Result<()> {
        let mut server = self.server.take().expect("it was started");
        let (killed, ended) = (server.kill(), server.wait());
        killed.and(ended).into_diagnostic()?;
        Ok(())
    }
}

/// Prints and runs a command, which must succeed.
pub(super) fn show(command: &mut Command) -> Result<()> {
    println!("$ {}", line(command));
    let status = command.status().into_diagnostic().wrap_err_with(|| line(command))?;
    if !status.success() {
        bail!("{} ended with {status}", line(command));
    }
    Ok(())
}

/// A command as it is typed, without the directories of its program.
pub(super) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let words = command.get_args().map(|word| word.to_string_lossy());
    [program].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}
