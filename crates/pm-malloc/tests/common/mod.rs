//! The library and the program in C that the tests run with it, both built once a test binary.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// `libpmalloc.so` as it is now, whatever lies in the target directory from before.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--package",
                "pm-malloc",
                "--message-format",
                "json-render-diagnostics",
            ])
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

/// `c/exercise.c`, compiled.
pub(crate) fn exercise() -> &'static Path {
    static EXERCISE: OnceLock<PathBuf> = OnceLock::new();
    EXERCISE.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("exercise-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/exercise.c");
        // It does what compilers warn of, and must be compiled as it stands.
        let flags =
            ["-std=gnu17", "-O1", "-fno-builtin", "-pthread", "-Wall", "-Werror", "-Wno-use-after-free"];
        let status = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&program).status().unwrap();
        assert!(status.success(), "exercise.c does not compile");
        program
    })
}

/// A heap's file that is not there yet.
pub(crate) struct HeapFile(TempDir);

impl HeapFile {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
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

/// What a program said on its standard error.
pub(crate) fn complaints(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
