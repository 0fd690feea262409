//! A file system in a file in memory, and its server in the foreground.

use crate::common::{pmfs, run};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time limit for files to be closed by children of other tests, generous for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A file system in memory, mounted.
pub(crate) struct Mount {
    pub(crate) dir: TempDir,
    pub(crate) server: Option<Child>,
    /// More options of the mount.
    options: Vec<String>,
}

impl Mount {
    pub(crate) fn new() -> Self {
        Self::with_size("64M")
    }

    pub(crate) fn with_size(size: &str) -> Self {
        Self::with_options(size, &[])
    }

    pub(crate) fn with_options(size: &str, options: &[&str]) -> Self {
        let fuse = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        assert!(fuse.is_ok(), "these tests need FUSE: {:?}", fuse.err());
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(dir.path().join("mount")).unwrap();
        let options = options.iter().map(ToString::to_string).collect();
        let mut mount = Self { dir, server: None, options };
        run(pmfs().args(["mkfs", "--size", size]).arg(mount.file()));
        mount.start();
        mount
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("disk.pm")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("mount").join(name)
    }

    pub(crate) fn start(&mut self) {
        self.start_with(Stdio::inherit());
    }

    /// With this as its standard error.
    pub(crate) fn start_with(&mut self, stderr: Stdio) {
        let mut command = pmfs();
        command.args(["mount", "-f", "--json"]).arg(self.file()).arg(self.path("")).args(&self.options);
        let mut server = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("mounted"), "{line}");
        self.server = Some(server);
    }

    pub(crate) fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    pub(crate) fn stop(&mut self) {
        // A child that another test starts has this one's open files, too, until it runs its program.
        let begin = Instant::now();
        let is_busy = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("os error 16");
        loop {
            let output = pmfs().arg("umount").arg(self.path("")).output().unwrap();
            if output.status.success() {
                break;
            }
            assert!(is_busy(&output) && begin.elapsed() < PATIENCE, "{output:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(self.server.take().unwrap().wait().unwrap().success());
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let server = self.server.as_ref().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(server), signal).unwrap();
    }

    pub(crate) fn check(&self) {
        run(pmfs().arg("fsck").arg(self.file()));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().ok();
            server.wait().ok();
        }
        // Detached, in case that a test has failed with files open.
        Command::new("umount").arg("-l").arg(self.path("")).stderr(Stdio::null()).status().ok();
    }
}
