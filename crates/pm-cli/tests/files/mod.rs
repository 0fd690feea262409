//! Heaps in files, the command that inspects them, and a terminal for its questions.

#![allow(dead_code, reason = "each test program uses some of it")]

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Pool, PoolOptions, RegionOptions, Uuid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
pub(crate) use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};
use tempfile::TempDir;

/// A child inherits open files of this process, with their locks, until it runs its own program. So no file is open here while one is started.
static STARTING: RwLock<()> = RwLock::new(());

/// Runs code that opens files and closes them.
pub(crate) fn opening<R>(f: impl FnOnce() -> R) -> R {
    let _no_start = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    f()
}

/// Opens `data.pm` for `f`.
pub(crate) fn open<R>(scratch: &Scratch, f: impl FnOnce(Heap) -> R) -> R {
    opening(|| f(Heap::open(scratch.path("data.pm"), &HeapOptions::new()).unwrap()))
}

/// A directory in memory.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes `data.pm`: a heap with 16 blocks, two of them with roots. Returns their offsets.
    pub(crate) fn heap(&self) -> Vec<u64> {
        self.unrecovered();
        // The records of its transactions are retired.
        open(self, |heap| heap.blocks())
    }

    /// The same, as a process that was killed leaves it.
    pub(crate) fn unrecovered(&self) -> Vec<u64> {
        let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(1_000_000_000);
        let options = HeapOptions::new().pool(pool).lanes(2).lane_entries(62).chunk_bytes(64 << 10);
        opening(|| {
            let heap = Heap::create(self.path("data.pm"), 1 << 20, &options).unwrap();
            heap.transaction(|tx| {
                let list = tx.alloc(&7_u64)?;
                tx.set_root("list", list)?;
                for number in 0..14_u64 {
                    tx.alloc_slice(&[number; 39])?;
                }
                Ok::<_, TxError>(())
            })
            .unwrap();
            heap.transaction(|tx| {
                let other = tx.alloc(&8_u64)?;
                tx.set_root("other", other)
            })
            .unwrap();
            let blocks = heap.blocks();
            // As if the process were killed now: dropping the heap would close it.
            let killed = fs::read(self.path("data.pm")).unwrap();
            drop(heap);
            fs::write(self.path("data.pm"), killed).unwrap();
            blocks
        })
    }

    /// Makes `pool.pm`, a pool with nothing in it.
    pub(crate) fn pool(&self) -> PathBuf {
        let path = self.path("pool.pm");
        let options = PoolOptions::new().created_s(0);
        opening(|| drop(Pool::create(&path, 1 << 20, &RegionOptions::new(), &options).unwrap()));
        path
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pm"));
        command.args(args).current_dir(self.0.path()).env("NO_COLOR", "1").stdin(Stdio::null());
        command
    }

    /// Starts the command, with pipes for its input and output.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let _nothing_is_open = STARTING.write().unwrap_or_else(PoisonError::into_inner);
        command.spawn().unwrap()
    }

    /// Runs and expects that exit code. Returns the output, or the message in one line.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str], code: i32) -> String {
        told(args, &output(&mut self.command(args)), code)
    }

    /// Runs. Returns the exit code and all output.
    pub(crate) fn run_any(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = output(&mut self.command(args));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str], code: i32) -> Value {
        serde_json::from_str(&self.run(&[&["--json"], args].concat(), code)).unwrap()
    }

    /// As `run`, and expects `data.pm` to have the same bytes before and after.
    #[track_caller]
    pub(crate) fn unchanged(&self, args: &[&str], code: i32) -> String {
        self.unchanged_file("data.pm", args, code)
    }

    /// As `unchanged`, of another file.
    #[track_caller]
    pub(crate) fn unchanged_file(&self, file: &str, args: &[&str], code: i32) -> String {
        let before = fs::read(self.path(file)).unwrap();
        let told = self.run(args, code);
        assert!(fs::read(self.path(file)).unwrap() == before, "{args:?} changed {file}");
        told
    }

    /// Runs on a terminal with these answers. Returns the output, questions first.
    #[track_caller]
    pub(crate) fn asked(&self, args: &[&str], answers: &str, code: i32) -> String {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let input = fs::OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut keyboard = fs::File::from(terminal);
        keyboard.write_all(answers.as_bytes()).unwrap();
        let output = output(self.command(args).stdin(input));
        let questions = String::from_utf8(output.stderr.clone()).unwrap();
        questions + &told(args, &output, code)
    }
}

fn output(command: &mut Command) -> Output {
    let nothing_is_open = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(nothing_is_open);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn told(args: &[&str], output: &Output, code: i32) -> String {
    let (out, err) = (
        String::from_utf8(output.stdout.clone()).unwrap(),
        String::from_utf8(output.stderr.clone()).unwrap(),
    );
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    assert!(!err.contains("panicked"), "{args:?}: {err}");
    if code != 1 {
        return out;
    }
    // The report is wrapped and has a margin.
    let words = err.split_whitespace().filter(|word| !matches!(*word, "│" | "×" | "╰─▶" | "├─▶"));
    words.collect::<Vec<_>>().join(" ")
}

/// Inverts the byte at an offset.
pub(crate) fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}
