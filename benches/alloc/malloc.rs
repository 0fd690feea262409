//! Allocators behind `malloc`: what a program in C runs with.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use xtask::{apt, cargo};

/// Where jemalloc is, below `/usr`.
pub(crate) const JEMALLOC: &str = "lib/libjemalloc.so.2";

/// A malloc, and how a program comes to run with it.
#[derive(Clone, Debug)]
pub(crate) struct Malloc {
    pub(crate) name: &'static str,
    environment: Vec<(&'static str, OsString)>,
    /// `libpmalloc.so`, where it is ours.
    ours: Option<PathBuf>,
}

impl Malloc {
    /// The rivals. glibc's without its cache for each thread, which came in 2.26, is what the paper measured.
    pub(crate) fn rivals() -> Result<[Self; 3]> {
        let no_cache = OsString::from("glibc.malloc.tcache_count=0");
        let jemalloc = apt::find(JEMALLOC).ok_or_else(|| miette!("{JEMALLOC} is not below /usr"))?;
        let of = |name, environment| Self { name, environment, ours: None };
        Ok([
            of("glibc", Vec::new()),
            of("glibc, no tcache", vec![("GLIBC_TUNABLES", no_cache)]),
            of("jemalloc", vec![("LD_PRELOAD", jemalloc.into_os_string())]),
        ])
    }

    /// Ours.
    pub(crate) fn ours() -> Result<Self> {
        Ok(Self { name: "ours, T = 0", environment: Vec::new(), ours: Some(library()?) })
    }

    /// Lets `command` run with it, as long as what is returned is kept; ours with a heap of `bytes` bytes.
    pub(crate) fn apply(&self, bytes: u64, command: &mut Command) -> Result<Option<HeapFile>> {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let Some(library) = &self.ours else { return Ok(None) };
        let file = HeapFile::new()?;
        file.preload(library, bytes, command);
        Ok(Some(file))
    }
}

/// Builds `libpmalloc.so` as users have it, and says where it is.
pub(crate) fn library() -> Result<PathBuf> {
    cargo::build("pm-malloc", &["--release"], "libpmalloc.so")
}

/// Where a preloaded heap is: in memory, and gone when this is dropped.
#[derive(Debug)]
pub(crate) struct HeapFile(TempDir);

impl HeapFile {
    /// There is no file yet: the library makes it.
    pub(crate) fn new() -> Result<Self> {
        tempfile::tempdir_in("/dev/shm").into_diagnostic().wrap_err("/dev/shm").map(Self)
    }

    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("heap")
    }

    /// Lets `command` allocate from it: so many bytes in all.
    pub(crate) fn preload(&self, library: &Path, bytes: u64, command: &mut Command) {
        command.env("LD_PRELOAD", library);
        command.env("PM_MALLOC_FILE", self.path()).env("PM_MALLOC_SIZE", bytes.to_string());
    }
}
