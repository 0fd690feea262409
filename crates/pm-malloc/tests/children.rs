//! Programs that fork: each process has its own blocks, in its own file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{HeapFile, assert_silent, compiled, complaints, first_line, open, sound, wait_for};
use pm_core::Pmem;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn children() -> &'static Path {
    static CHILDREN: OnceLock<PathBuf> = OnceLock::new();
    CHILDREN.get_or_init(|| compiled("children.c", &[]))
}

/// Runs a case of `children.c`, which must succeed and print nothing.
fn passes(name: &str) {
    let file = HeapFile::new();
    let mut program = file.command(children());
    let mut child = program.arg(name).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            child.kill().unwrap();
            panic!("{name} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_silent(name, &child.wait_with_output().unwrap());
    sound(&file.path());
    let files = std::fs::read_dir(file.path().parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "{name}: files of children that ended");
}

/// Defines a test for each case of `children.c`.
macro_rules! cases {
    ($($test:ident: $case:literal,)*) => {
        $(
            #[test]
            fn $test() {
                passes($case);
            }
        )*
    };
}

cases! {
    child_allocates_from_own_heap: "heap",
    foreign_fork_handlers_may_allocate: "handlers",
    child_without_handlers_does_not_change_parents_heap: "without_handlers",
    child_without_handlers_during_fork_changes_neither_heap: "without_handlers_meanwhile",
    fork_is_safe_while_threads_allocate: "busy",
    closed_descriptors_are_not_used: "closes",
    output_to_closed_descriptor_does_not_end_wait_for_child: "prints",
    signal_handler_may_fork_while_thread_holds_lock: "fault_forks",
    stores_of_child_made_in_free_are_private: "fault_forks_and_goes_on",
    signal_handler_may_fork_while_thread_waits_for_fork: "handler_forks_meanwhile",
}

#[test]
fn standard_descriptors_stay_closed() {
    let file = HeapFile::new();
    let mut shell = file.command("/bin/sh");
    shell.env_remove("LD_PRELOAD").args(["-c", "LD_PRELOAD=\"$0\" exec \"$1\" descriptors <&- >&-"]);
    let output = shell.arg(common::library()).arg(children()).output().unwrap();
    assert!(output.status.success(), "{}", complaints(&output));
    sound(&file.path());
}

/// A daemon: its parent has ended, and released its lock; the daemon's file has a name.
#[test]
fn daemon_keeps_own_file() {
    let file = HeapFile::new();
    let mut command = file.command(children());
    command.arg("daemonize").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut parent = command.spawn().unwrap();
    let daemon = PathBuf::from(format!("{}.{}", file.path().display(), first_line(&mut parent).trim()));
    // The parent has ended: its heap can be opened while the daemon runs.
    assert!(parent.try_wait().unwrap().is_some_and(|status| status.success()));
    sound(&file.path());
    assert!(daemon.exists(), "the daemon's heap has a name");
    let in_use = open(&daemon).map(drop);
    assert!(in_use.is_err_and(|error| error.to_string().contains("in use")), "the daemon has its lock");
    drop(parent.stdin.take());
    let output = parent.wait_with_output().unwrap();
    let message = format!("outlives its parent, process {}", reported_parent(&output.stderr));
    assert!(complaints(&output).contains(&message), "{}", complaints(&output));

    wait_for("the daemon does not end", || open(&daemon).ok());
    let heap = sound(&daemon);
    let texts = heap.blocks().into_iter().filter(|block| {
        let mut text = [0; 40];
        heap.pool().pmem().load(*block, &mut text);
        String::from_utf8_lossy(&text).contains("of the daemon")
    });
    assert_eq!(texts.count(), 10);
}

/// The number of the parent in the daemon's message.
fn reported_parent(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let after = text.split("its parent, process ").nth(1).unwrap_or_default();
    after.chars().take_while(char::is_ascii_digit).collect()
}

/// A forked child that starts another program leaves no file, and the file of each process is removed with it.
#[test]
fn files_of_processes_are_removed_unless_kept() {
    let script = "i=0; while [ $i -lt 5 ]; do ls / > /dev/null; (echo $i); i=$((i + 1)); done; kill -9 $$";
    for (keep, files) in [("", 0), ("0", 0), ("1", 1)] {
        let directory = tempfile::tempdir().unwrap();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).env("LD_PRELOAD", common::library());
        shell.env("PM_MALLOC_FILE", directory.path().join("%p.heap")).env("PM_MALLOC_SIZE", "16M");
        if !keep.is_empty() {
            shell.env("PM_MALLOC_KEEP", keep);
        }
        let output = shell.output().unwrap();
        assert_eq!((output.stdout, output.stderr), (b"0\n1\n2\n3\n4\n".to_vec(), Vec::new()));
        let found = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let found: Vec<_> = found.collect();
        assert!(found.len() >= files && (files > 0 || found.is_empty()), "KEEP={keep}: {found:?}");
        found.iter().for_each(|file| drop(sound(file)));
    }
}
