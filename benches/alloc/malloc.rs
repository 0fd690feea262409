//! Implementations of `malloc` for C programs.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use xtask::{apt, cargo};

/// The path of jemalloc below `/usr`.
pub(crate) const JEMALLOC: &str = "lib/libjemalloc.so.2";

/// An implementation of malloc, and the environment that selects it.
#[derive(Clone, Debug)]
pub(crate) struct Malloc {
    pub(crate) name: &'static str,
    environment: Vec<(&'static str, OsString)>,
    /// A library to preload with a heap in a file, such as `libpmalloc.so`.
    library: Option<PathBuf>,
}

impl Malloc {
    /// The rivals. The paper measured glibc without the per-thread cache (tcache) that version 2.26 introduced.
    pub(crate) fn rivals() -> Result<[Self; 3]> {
        let no_cache = OsString::from("glibc.malloc.tcache_count=0");
        let jemalloc = apt::find(JEMALLOC).ok_or_else(|| miette!("{JEMALLOC} is not below /usr"))?;
        let of = |name, environment| Self { name, environment, library: None };
        Ok([
            of("glibc", Vec::new()),
            of("glibc, no tcache", vec![("GLIBC_TUNABLES", no_cache)]),
            of("jemalloc", vec![("LD_PRELOAD", jemalloc.into_os_string())]),
        ])
    }

    /// Ours: the release build of `libpmalloc.so`.
    pub(crate) fn ours() -> Result<Self> {
        Ok(Self::preloaded(cargo::build("pm-malloc", &["--release"], "libpmalloc.so")?))
    }

    /// The malloc of this library, which may keep its heap in a file.
    pub(crate) fn preloaded(library: PathBuf) -> Self {
        Self { name: "ours, T = 0", environment: Vec::new(), library: Some(library) }
    }

    /// The file name of a preloaded library.
    pub(crate) fn library_name(&self) -> String {
        let name = self.library.as_ref().and_then(|library| library.file_name());
        name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// Selects this malloc for `command`. A preloaded library gets a heap of `bytes` bytes in a file in memory, named `heap` in the returned
    /// directory: the library creates it.
    pub(crate) fn apply(&self, bytes: u64, command: &mut Command) -> Result<Option<TempDir>> {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let Some(library) = &self.library else { return Ok(None) };
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic().wrap_err("/dev/shm")?;
        command.env("LD_PRELOAD", library).env("PM_MALLOC_FILE", directory.path().join("heap"));
        command.env("PM_MALLOC_SIZE", bytes.to_string());
        Ok(Some(directory))
    }
}
