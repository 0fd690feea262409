//! A fork while another thread prints a message.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{HeapFile, compiled, first_line};
use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn ends(mode: &str) -> bool {
    let file = HeapFile::new();
    let mut command = file.command(compiled("fork_during_message.c", &[]));
    let mut program = command.arg(mode).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut program), "full");
    // Its child, if any, has started by now.
    std::thread::sleep(Duration::from_millis(500));
    let mut stderr = program.stderr.take().unwrap();
    // From here on standard error is read, to its end.
    let reader = std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
    let deadline = Instant::now() + Duration::from_secs(10);
    let ended = loop {
        if let Some(status) = program.try_wait().unwrap() {
            break status.success();
        }
        if Instant::now() > deadline {
            // And its child.
            let children = format!("/proc/{0}/task/{0}/children", program.id());
            for child in std::fs::read_to_string(children).unwrap().split_whitespace() {
                let wait = std::fs::read_to_string(format!("/proc/{child}/syscall")).unwrap_or_default();
                eprintln!("child {child} is in system call {wait}");
                std::process::Command::new("kill").args(["-9", child]).status().unwrap();
            }
            program.kill().unwrap();
            program.wait().unwrap();
            break false;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    drop(reader.join());
    ended
}

#[test]
fn fork_ends_while_thread_prints() {
    assert!(ends("there"));
}

#[test]
fn fork_ends_while_thread_and_child_print() {
    assert!(ends("gone"));
}
