//! Processes killed at random moments, with two threads in transactions: the heap opens, is consistent, and contains every acknowledged transaction.

use crate::queues::{THREADS, check, step};
use pm_alloc::{Heap, HeapOptions};
use pm_testkit::run_and_kill;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable with the heap's file. It is set in the child process only.
const FILE: &str = "PM_ALLOC_KILL_FILE";
/// The environment variable with the number of kills, 20 by default. A release is checked with 200.
const ROUNDS: &str = "PM_KILLS";

/// The process that is killed. Without the variable [`FILE`] this test does nothing.
#[test]
fn child_process_commits_until_killed() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let heap = Heap::open(path, &HeapOptions::new()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let heap = &heap;
            scope.spawn(move || {
                loop {
                    let number = step(heap, thread).unwrap();
                    // One call writes all 16 bytes, because the kernel does not split a write this short.
                    let mut message = thread.to_le_bytes().to_vec();
                    message.extend(number.to_le_bytes());
                    std::io::stderr().write_all(&message).unwrap();
                }
            });
        }
    });
}

fn memory_dir() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }
}

#[test]
fn acknowledged_transactions_survive_kills() {
    let rounds: u64 = std::env::var(ROUNDS).map_or(20, |rounds| rounds.parse().unwrap());
    let dir = tempfile::tempdir_in(memory_dir()).unwrap();
    let path = dir.path().join("heap.pm");
    drop(Heap::create(&path, 16 << 20, &HeapOptions::new()).unwrap());
    let (mut acknowledged, mut reopened) = (0, Vec::new());
    for round in 0..rounds {
        // The earliest kills are during the open, the latest ones after thousands of transactions.
        let time = Duration::from_micros(500 + round * 7919 % 40_000);
        let variables = [(FILE, path.as_os_str())];
        let messages = run_and_kill("kill::child_process_commits_until_killed", &variables, time);
        let begun = std::time::Instant::now();
        let text = String::from_utf8_lossy(&messages);
        assert!(!text.contains("panicked"), "round {round}: {text}");
        let heap = Heap::open(&path, &HeapOptions::new()).unwrap();
        reopened.push(begun.elapsed());
        let appended = check(&heap);
        for entry in messages.chunks_exact(16) {
            let [thread, number] = [0, 8].map(|at| u64::from_le_bytes(*entry[at..].first_chunk().unwrap()));
            assert!(number < appended[usize::try_from(thread).unwrap()], "thread {thread} keeps {number}");
            acknowledged += 1;
        }
    }
    reopened.sort();
    println!(
        "{rounds} kills, {acknowledged} transactions acknowledged, none lost; reopened in {:?} (median)",
        reopened[reopened.len() / 2]
    );
    assert!(acknowledged > rounds, "more than {rounds} transactions, not {acknowledged}");
}
