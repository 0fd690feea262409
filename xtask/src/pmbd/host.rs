//! What the host has for a guest: `pmbd`, built, and a real source tree to copy onto a disk, this repository's.

use std::path::PathBuf;

use miette::{IntoDiagnostic, Result, WrapErr};

use crate::cargo;
use crate::vm::Put;

/// With which of cargo's profiles to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// For tests of what it does: its dependencies are there from building all other tests, and its own
    /// assertions and overflow checks are on.
    Dev,
    /// As users have it.
    Release,
}

/// Builds `pmbd` and says where it is. It is a dynamic program of this machine: a guest gets its shared
/// objects with it.
///
/// # Errors
/// When it does not compile; cargo has said why.
pub fn build(profile: Profile) -> Result<PathBuf> {
    let release: &[&str] = if profile == Profile::Release { &["--release"] } else { &[] };
    cargo::build("pmbd-ublk", &[&["--bin", "pmbd"], release].concat(), "pmbd")
}

/// This repository's files, without what is built or hidden, each to be put under `guest`.
///
/// # Errors
/// When the repository's root cannot be read.
pub fn source_tree(guest: &str) -> Result<Vec<Put>> {
    let root = cargo::root();
    let mut puts = Vec::new();
    let context = || format!("cannot read {}", root.display());
    for entry in root.read_dir().into_diagnostic().wrap_err_with(context)? {
        let entry = entry.into_diagnostic()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && name != "target" {
            puts.push(Put { host: entry.path(), guest: format!("{guest}/{name}") });
        }
    }
    Ok(puts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_tree_has_no_build_output() {
        let puts = source_tree("/src").expect("readable");
        let has = |guest: &str| puts.iter().any(|put| put.guest == guest);
        assert!(has("/src/crates") && has("/src/Cargo.toml"), "{puts:?}");
        assert!(!has("/src/target") && !has("/src/.git"), "{puts:?}");
    }
}
