//! A test of this program as a child that is killed.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The signal of a kill: signal(7).
const SIGKILL: i32 = 9;

/// Starts the test of this program with this full name as a child with these environment variables, kills it after `time`, and returns what it has written
/// to standard error, which is not buffered: what it has acknowledged.
///
/// # Panics
/// If the child ends by itself, also by a signal, with what it has written.
pub fn run_and_kill(test: &str, variables: &[(&str, &OsStr)], time: Duration) -> Vec<u8> {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("this program runs");
    let mut stderr = child.stderr.take().expect("it is piped");
    let reader = thread::spawn(move || {
        let mut acknowledged = Vec::new();
        stderr.read_to_end(&mut acknowledged).map(|_| acknowledged)
    });
    thread::sleep(time);
    child.kill().expect("it can be killed");
    let status = child.wait().expect("it has ended");
    let acknowledged = reader.join().expect("the reader does not panic").expect("the pipe is readable");
    assert!(
        status.signal() == Some(SIGKILL),
        "{test} ended with {status} before it was killed: {}",
        String::from_utf8_lossy(&acknowledged)
    );
    acknowledged
}
