//! `pmbd serve --size`, killed at each system call of its start, or with each call failing: the next server serves the disk.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_syscall_faults::{End, Fault, Injection, Outcome, Traced, sweep};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};

const FAULTS: [Fault; 3] = [Fault::Error(libc::EIO), Fault::Error(libc::ENOMEM), Fault::Kill];

/// Each fault is injected at one in so many calls; at all of them with `PM_FAULTS_EXHAUSTIVE=1`.
const STEP: usize = 2;

/// A server that creates its disk if there is none.
fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmbd"));
    command.args(["--json", "serve", "disk.pm", "--size", "1M", "--transport", "nbd"]);
    command.current_dir(dir).env("PMBD_RUN_DIR", dir.join("run")).stdin(Stdio::null());
    command
}

/// Runs a server until it serves. Returns its standard error too.
fn run(dir: &Path, injection: Injection) -> (Outcome, String) {
    let mut file = tempfile::tempfile().unwrap();
    let mut command = command(dir);
    command.stdout(Stdio::null()).stderr(file.try_clone().unwrap());
    let outcome = Traced::new(command, injection).terminated_at(libc::SYS_write, 1).run();
    let mut stderr = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut stderr).unwrap();
    (outcome, stderr)
}

/// The next server serves, and ends with success.
fn check_next(dir: &Path) {
    let mut server = command(dir).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // It may have ended if it does not serve.
    let sent = kill_process(Pid::from_child(&server), Signal::TERM);
    let output = server.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        line.contains("serving") && output.status.success(),
        "next: {line} {sent:?} {}: {stderr}",
        output.status
    );
}

/// The disk, and files whose names start with its name.
fn disks(dir: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("disk.pm")).collect()
}

#[test]
fn next_server_serves_after_any_failure_at_start() {
    sweep("next_server_serves_after_any_failure_at_start", &FAULTS, STEP, |injection| {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (outcome, stderr) = run(dir.path(), injection);
        let is_killed = injection.fault == Fault::Kill && outcome.hit.is_some();
        match outcome.end {
            End::Exit(0) => assert!(!is_killed, "{outcome}: {stderr}"),
            End::Exit(1) => {
                assert!(!is_killed && outcome.hit.is_some(), "{outcome}: {stderr}");
                assert_eq!(disks(dir.path()), [""; 0], "left behind: {outcome}: {stderr}");
            }
            // Of the dynamic loader.
            End::Exit(127) => assert!(!is_killed && outcome.hit.is_some(), "{outcome}: {stderr}"),
            End::Signal(libc::SIGKILL) => assert!(is_killed, "{outcome}: {stderr}"),
            _ => panic!("{outcome}: {stderr}"),
        }
        check_next(dir.path());
        outcome
    });
}
