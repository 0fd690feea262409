//! Programs with known system calls, killed at one, with one failing, and hanging.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_syscall_faults::{End, Fault, Injection, Outcome, Traced, counting, sweep};
use std::process::{Command, Stdio};
use std::time::Duration;

const KILLED: End = End::Signal(libc::SIGKILL);
const EIO: Fault = Fault::Error(libc::EIO);

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn run(script: &str, fault: Fault, call: usize) -> Outcome {
    Traced::new(shell(script), Injection { fault, call }).run()
}

#[test]
fn program_is_killed_at_its_first_call() {
    let outcome = run("exit 3", Fault::Kill, 0);
    assert_eq!((outcome.call_count, outcome.end), (1, KILLED));
    assert!(!outcome.hit.unwrap().is_in_child);
}

#[test]
fn program_that_makes_fewer_calls_ends_as_without_a_tracer() {
    let outcome = run("exit 3", Fault::Kill, 9999);
    assert_eq!((outcome.hit, outcome.end), (None, End::Exit(3)));
    assert!(outcome.call_count > 10);
    let outcome = run("kill -USR1 $$", EIO, 9999);
    assert_eq!((outcome.hit, outcome.end), (None, End::Signal(libc::SIGUSR1)));
}

#[test]
fn some_call_of_a_child_is_hit() {
    // The parent tells how its child ended. Both commands run in a child.
    let script = "(exec 3</dev/null) && (exec 3</dev/null); [ $? = 0 ] || exit 7";
    let outcomes: Vec<Outcome> =
        (0..).map(|call| run(script, EIO, call)).take_while(|it| it.hit.is_some()).collect();
    let opens_in_child: Vec<_> = outcomes
        .iter()
        .filter(|outcome| outcome.hit.is_some_and(|hit| hit.is_in_child && hit.number == libc::SYS_openat))
        .collect();
    assert_eq!(opens_in_child.len(), 2, "{outcomes:?}");
    assert!(opens_in_child.iter().all(|outcome| outcome.end == End::Exit(7)));
}

#[test]
fn program_that_hangs_is_killed_with_its_children() {
    let injection = Injection { fault: Fault::Kill, call: 9999 };
    let hangs = Traced::new(shell("sleep 1000 & wait"), injection).within(Duration::from_millis(300));
    assert_eq!(hangs.run().end, End::Hang);
}

#[test]
fn last_call_ends_the_counting_and_the_program() {
    let injection = Injection { fault: Fault::Kill, call: 9999 };
    let server = || Traced::new(shell("echo ready; while :; do :; done"), injection);
    let outcome = server().terminated_at(libc::SYS_write, 1).run();
    assert_eq!((outcome.hit, outcome.end), (None, End::Signal(libc::SIGTERM)));
    // If later calls were counted too, the next one would be hit.
    let call = outcome.call_count;
    let injection = Injection { fault: Fault::Kill, call };
    let outcome = Traced::new(shell("echo ready; exit 0"), injection).terminated_at(libc::SYS_write, 1).run();
    assert_eq!(outcome.hit, None);
}

/// Tells a child of the test that it is traced.
const IS_TRACED: &str = "PM_FAULTS_TEST_IS_TRACED";

#[test]
fn calls_between_marks_count_in_threads_too() {
    let name = "calls_between_marks_count_in_threads_too";
    let metadata = || std::fs::metadata("/");
    if std::env::var_os(IS_TRACED).is_some() {
        assert!(metadata().is_ok());
        counting(true);
        let here = metadata();
        let there = std::thread::spawn(metadata).join().unwrap();
        counting(false);
        assert!(metadata().is_ok());
        std::process::exit(i32::from(here.is_err()) + 2 * i32::from(there.is_err()));
    }
    let trial = |injection| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact"]).env(IS_TRACED, "").stdout(Stdio::null()).stderr(Stdio::null());
        Traced::new(command, injection).between_marks().run()
    };
    let ends: Vec<End> = (0..3).map(|call| trial(Injection { fault: EIO, call }).end).collect();
    assert_eq!(ends, [End::Exit(1), End::Exit(2), End::Exit(0)]);
    // The calls by which a thread is started count for a kill.
    assert_eq!(trial(Injection { fault: Fault::Kill, call: 3 }).end, KILLED);
}

#[test]
fn sweep_reports_failed_injections_with_commands() {
    let trial = |injection: Injection| {
        let outcome = Traced::new(shell("exit 0"), injection).run();
        assert!(injection.call != 1, "the second call");
        outcome
    };
    let failed = std::panic::catch_unwind(|| sweep("name", &[EIO], 1, trial)).unwrap_err();
    let told = failed.downcast_ref::<String>().unwrap();
    assert!(told.starts_with("1 injections failed:\nEIO@1: the second call\n"), "{told}");
    assert!(told.contains("    PM_FAULTS_ONLY=EIO@1 cargo test"), "{told}");
    assert!(told.ends_with(" --test traced name -- --exact"), "{told}");
}
