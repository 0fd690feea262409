//! The library's start, and a fork, in a process that is killed at each of its system calls, or in which each call fails.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{HeapFile, compiled, complaints};
use pm_syscall_faults::{End, Fault, Injection, Outcome, Traced, sweep};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const FAULTS: [Fault; 5] = [
    Fault::Error(libc::EIO),
    Fault::Error(libc::ENOSPC),
    Fault::Error(libc::ENOMEM),
    Fault::Error(libc::EMFILE),
    Fault::Kill,
];

/// Each fault is injected at one in so many calls; at all of them with `PM_FAULTS_EXHAUSTIVE=1`.
const STEP: usize = 3;

/// The exit codes of the program if its child was aborted or killed, and if the child succeeded.
const ABORTED: End = End::Exit(50);
const SUCCEEDED: End = End::Exit(100);

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("failing_calls.c", &[]))
}

/// The program on a small heap.
fn command(file: &HeapFile) -> Command {
    let mut command = file.command(program());
    command.env("PM_MALLOC_SIZE", "4M");
    command
}

fn run(mut command: Command, injection: Injection) -> Outcome {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Traced::new(command, injection).between_marks().run()
}

/// The next process with this file allocates there, and prints no message.
fn check_next(file: &HeapFile) {
    let next = command(file).output().unwrap();
    assert!(next.status.success() && complaints(&next).is_empty(), "{}: {}", next.status, complaints(&next));
}

#[test]
fn program_runs_after_any_failure_at_start() {
    sweep("program_runs_after_any_failure_at_start", &FAULTS, STEP, |injection| {
        let file = HeapFile::in_memory();
        let outcome = run(command(&file), injection);
        let is_killed = injection.fault == Fault::Kill && outcome.hit.is_some();
        let expected = if is_killed { End::Signal(libc::SIGKILL) } else { End::Exit(0) };
        assert_eq!(outcome.end, expected, "{outcome}");
        check_next(&file);
        outcome
    });
}

#[test]
fn parent_runs_after_any_failure_in_fork() {
    sweep("parent_runs_after_any_failure_in_fork", &FAULTS, STEP, |injection| {
        let file = HeapFile::in_memory();
        let mut command = command(&file);
        command.arg("forks");
        let outcome = run(command, injection);
        let is_expected = match outcome.end {
            // A child that cannot get its own heap is aborted.
            ABORTED => outcome.hit.is_some(),
            SUCCEEDED => true,
            End::Signal(signal) => {
                injection.fault == Fault::Kill && outcome.hit.is_some() && signal == libc::SIGKILL
            }
            _ => false,
        };
        assert!(is_expected, "{outcome}");
        check_next(&file);
        outcome
    });
}
