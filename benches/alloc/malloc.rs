//! Allocators for volatile memory: the malloc that a program in C runs with.

use miette::{Result, miette};
use std::ffi::OsString;
use std::process::Command;
use xtask::apt;

/// Where jemalloc is, below `/usr`.
pub(crate) const JEMALLOC: &str = "lib/libjemalloc.so.2";

/// A malloc, and how a program comes to run with it.
#[derive(Clone, Debug)]
pub(crate) struct Malloc {
    pub(crate) name: &'static str,
    environment: Vec<(&'static str, OsString)>,
}

impl Malloc {
    /// The rivals. glibc's without its cache for each thread, which came in 2.26, is what the paper measured.
    pub(crate) fn all() -> Result<[Self; 3]> {
        let no_cache = OsString::from("glibc.malloc.tcache_count=0");
        let jemalloc = apt::find(JEMALLOC).ok_or_else(|| miette!("{JEMALLOC} is not below /usr"))?;
        Ok([
            Self { name: "glibc", environment: Vec::new() },
            Self { name: "glibc, no tcache", environment: vec![("GLIBC_TUNABLES", no_cache)] },
            Self { name: "jemalloc", environment: vec![("LD_PRELOAD", jemalloc.into_os_string())] },
        ])
    }

    /// Lets `command` run with it.
    pub(crate) fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)))
    }
}
