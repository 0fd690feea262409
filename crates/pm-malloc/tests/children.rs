//! Programs that fork: each process has blocks of its own, in a file of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{HeapFile, compiled, complaints, sound};
use pm_alloc::{Heap, HeapOptions};
use pm_core::{Pmem, RegionOptions};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn children() -> &'static Path {
    static CHILDREN: OnceLock<PathBuf> = OnceLock::new();
    CHILDREN.get_or_init(|| compiled("children.c", &[]))
}

/// Runs a test case of `children.c` that must succeed and print nothing.
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
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}: {}, {}", output.status, complaints(&output));
    assert_eq!(complaints(&output), "", "{name}");
    sound(&file.path());
    let files = std::fs::read_dir(file.path().parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "{name}: files of children that ended");
}

#[test]
fn child_allocates_from_a_heap_of_its_own() {
    passes("heap");
}

#[test]
fn fork_handlers_of_others_may_allocate() {
    passes("handlers");
}

#[test]
fn child_made_without_handlers_leaves_its_parents_heap_alone() {
    passes("without_handlers");
}

#[test]
fn child_made_without_handlers_during_a_fork_leaves_both_alone() {
    passes("without_handlers_meanwhile");
}

#[test]
fn fork_is_safe_while_threads_allocate() {
    passes("busy");
}

#[test]
fn descriptors_that_the_program_closed_are_not_used() {
    passes("closes");
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

#[test]
fn output_to_a_closed_descriptor_does_not_end_the_wait_for_a_child() {
    passes("prints");
}

#[test]
fn signal_handler_may_fork_while_its_thread_has_a_lock_of_the_heap() {
    passes("fault_forks");
}

#[test]
fn child_made_in_the_middle_of_a_free_keeps_its_stores_from_its_parent() {
    passes("fault_forks_and_goes_on");
}

#[test]
fn signal_handler_may_fork_while_its_thread_waits_for_another_fork() {
    passes("handler_forks_meanwhile");
}

/// A daemon: its parent is gone, and so is the parent's lock; the daemon's file has a name.
#[test]
fn daemon_keeps_a_file_of_its_own() {
    let file = HeapFile::new();
    let mut command = file.command(children());
    command.arg("daemonize").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut parent = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let daemon = PathBuf::from(format!("{}.{}", file.path().display(), line.trim()));
    // The parent is gone: its heap can be had, while the daemon runs.
    assert!(parent.try_wait().unwrap().is_some_and(|status| status.success()));
    sound(&file.path());
    assert!(daemon.exists(), "the daemon's heap has a name");
    let options = HeapOptions::new().region(RegionOptions::new().sparse(true));
    let in_use = Heap::open(&daemon, &options).map(drop);
    assert!(in_use.is_err_and(|error| error.to_string().contains("in use")), "the daemon has its lock");
    drop(parent.stdin.take());
    let said = parent.wait_with_output().unwrap();
    let told = format!("outlives its parent, process {}", said_parent(&said.stderr));
    assert!(complaints(&said).contains(&told), "{}", complaints(&said));

    let deadline = Instant::now() + Duration::from_secs(20);
    let heap = loop {
        match Heap::open(&daemon, &options) {
            Ok(heap) => break heap,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(heap.check().is_clean());
    let texts = heap.blocks().into_iter().filter(|block| {
        let mut text = [0; 40];
        heap.pool().pmem().load(*block, &mut text);
        String::from_utf8_lossy(&text).contains("of the daemon")
    });
    assert_eq!(texts.count(), 10);
}

/// The number of the parent in what the daemon said.
fn said_parent(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let behind = text.split("its parent, process ").nth(1).unwrap_or_default();
    behind.chars().take_while(char::is_ascii_digit).collect()
}

/// A forked child that starts another program leaves nothing behind, and each file for one process goes with it.
#[test]
fn files_of_processes_go_with_them_unless_they_are_kept() {
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
