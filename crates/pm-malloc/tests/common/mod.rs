//! The library, and the test programs in C, each built once a test binary.

#![allow(dead_code, reason = "each test program uses some of it")]

use pm_alloc::{Heap, HeapError, HeapOptions};
use pm_core::RegionOptions;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `libpmalloc.so`, built from the present sources.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "pm-malloc"])
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "pm-malloc does not build");
        let messages = String::from_utf8(output.stdout).unwrap();
        let artifacts = messages.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let files =
            artifacts.flat_map(|artifact| artifact["filenames"].as_array().cloned().unwrap_or_default());
        let paths = files.filter_map(|file| file.as_str().map(PathBuf::from));
        paths.into_iter().find(|path| path.ends_with("libpmalloc.so")).expect("cargo names what it built")
    })
}

/// A program of `c/`, compiled with additional flags.
pub(crate) fn compiled(source: &str, more: &[&str]) -> PathBuf {
    let name = format!("{source}-{}-{}", more.concat().replace('/', "_"), std::process::id());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let is_cxx = source.extension().is_some_and(|extension| extension == "cc");
    let (compiler, standard) = if is_cxx { ("c++", "-std=c++17") } else { ("cc", "-std=gnu17") };
    // The programs contain misuse that compilers warn of or optimize away.
    let flags = [standard, "-O1", "-fno-builtin", "-pthread", "-Wall", "-Werror", "-Wno-use-after-free"];
    let mut command = Command::new(compiler);
    let status = command.args(flags).arg(&source).arg("-o").arg(&program).args(more).status();
    let status = status.unwrap_or_else(|error| panic!("{compiler}: {error}; install g++"));
    assert!(status.success(), "{} does not compile", source.display());
    program
}

/// `c/exercise.c`, compiled.
pub(crate) fn exercise() -> &'static Path {
    static EXERCISE: OnceLock<PathBuf> = OnceLock::new();
    EXERCISE.get_or_init(|| compiled("exercise.c", &[]))
}

/// The file of a heap, not created yet.
pub(crate) struct HeapFile(TempDir);

impl HeapFile {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// In memory, if possible.
    pub(crate) fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        Self(if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("heap")
    }

    /// `program`, with the library, on this file.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("LD_PRELOAD", library()).env("PM_MALLOC_FILE", self.path()).env("PM_MALLOC_SIZE", "128M");
        command.stdin(Stdio::null());
        command
    }

    /// Runs one of the exercises to its end.
    pub(crate) fn exercise(&self, name: &str) -> Output {
        self.command(exercise()).arg(name).output().unwrap()
    }
}

/// Opens the heap in a file. A sparse file stays sparse.
pub(crate) fn open(file: impl AsRef<Path>) -> Result<Heap, HeapError> {
    Heap::open(file, &HeapOptions::new().region(RegionOptions::new().sparse(true)))
}

/// Opens the heap in a file, and checks it.
pub(crate) fn sound(file: &Path) -> Heap {
    let heap = open(file).unwrap();
    let report = heap.check();
    assert!(report.is_clean(), "{}: {:?}", file.display(), report.corruptions);
    heap
}

/// The standard error of a program.
pub(crate) fn complaints(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that a program succeeded, and printed no message.
#[track_caller]
pub(crate) fn assert_silent(what: &str, output: &Output) {
    assert!(output.status.success(), "{what}: {}, {}", output.status, complaints(output));
    assert_eq!(complaints(output), "", "{what}");
}

/// The first line that a program prints.
pub(crate) fn first_line(program: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Asks until there is an answer; panics after a minute.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
