//! A directory for a test, the program in it, and its servers.

use super::nbd_common::Client;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

/// A directory in memory, with a copy of the program that every user may run.
pub(crate) struct Scratch {
    pub(crate) dir: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // By another process: children that other threads start inherit a file that this one has open for writing, and a file that is open
        // for writing cannot be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pmbd")).arg(dir.path()).status().unwrap();
        assert!(copied.success());
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("pmbd"));
        command.args(args).current_dir(self.dir.path()).env("PMBD_RUN_DIR", self.path("run"));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs and expects success. Returns its output.
    pub(crate) fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs and expects failure with exit code 1 and no panic. Returns the message in one line.
    pub(crate) fn bad(&self, args: &[&str]) -> String {
        message(&self.run(args))
    }

    /// Runs and expects a failure whose message contains these words.
    #[track_caller]
    pub(crate) fn refuses(&self, args: &[&str], words: &[&str]) {
        assert_has(&self.bad(args), words);
    }

    pub(crate) fn create(&self) -> PathBuf {
        self.good(&["create", "disk.pm", "--size", "1M"]);
        self.path("disk.pm")
    }

    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        serving(self.command(&["--json", "serve"]).args(args).args(["--transport", "nbd"])).0
    }
}

/// A server that is stopped when dropped.
pub(crate) struct Server(pub(crate) Child);

impl Server {
    /// Waits for a server that was stopped or killed.
    pub(crate) fn wait(mut self) -> ExitStatus {
        let status = self.0.wait().unwrap();
        std::mem::forget(self);
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success(), "a server ends with success on SIGTERM");
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn message(output: &Output) -> String {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    // The report is wrapped and has a margin.
    message
        .split_whitespace()
        .filter(|word| !matches!(*word, "│" | "×" | "╰─▶" | "├─▶"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Asserts that a text contains all of these words.
#[track_caller]
pub(crate) fn assert_has(text: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(text.contains(words), "{words:?} is not in: {text}"));
}

/// The names in a directory, in order.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

pub(crate) fn serve_refuses(scratch: &Scratch, path: &Path, words: &str) {
    let before = fs::read(path).unwrap();
    scratch.refuses(&["serve", path.to_str().unwrap(), "--transport", "nbd"], &[words]);
    assert!(fs::read(path).unwrap() == before, "the file was changed");
}

/// Starts a server with JSON output. Returns its first event.
pub(crate) fn serving(command: &mut Command) -> (Server, serde_json::Value) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let up: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(up["event"], "serving", "{up}");
    (Server(child), up)
}

pub(crate) fn stop_and_read_stderr(mut server: Server) -> String {
    let mut stderr = server.0.stderr.take().unwrap();
    drop(server);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    said
}

/// Serves a disk with these options to `client`, and returns the server's last event.
pub(crate) fn serve_to(
    scratch: &Scratch,
    options: &[&str],
    client: impl FnOnce(&mut Client),
) -> serde_json::Value {
    let serve = ["--json", "serve", "disk.pm", "--size", "1M", "--transport", "nbd"];
    let mut command = scratch.command(&[&serve[..], options].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let server = Server(child);
    client(&mut Client::ready(&scratch.path("disk.pm.sock"), true));
    drop(server);
    serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
}

/// A command in namespaces of its own; the program and its arguments are to be added.
pub(crate) fn unshare(scratch: &Scratch, namespaces: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(namespaces);
    if !rustix::process::geteuid().is_root() {
        // Without root, as the root of a user namespace.
        command.arg("--map-root-user");
    }
    command.arg("--").current_dir(scratch.dir.path()).env("PMBD_RUN_DIR", scratch.path("run"));
    command
}
