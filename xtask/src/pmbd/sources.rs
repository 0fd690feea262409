//! A real source tree to copy onto a disk: this repository's.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr};

use crate::vm::Put;

/// This repository's files, without what is built or hidden, each to be put under `guest`.
///
/// # Errors
/// When the repository's root cannot be read.
pub fn source_tree(guest: &str) -> Result<Vec<Put>> {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
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
    fn the_tree_has_the_sources_and_nothing_built() {
        let puts = source_tree("/src").expect("readable");
        let has = |guest: &str| puts.iter().any(|put| put.guest == guest);
        assert!(has("/src/crates") && has("/src/Cargo.toml"), "{puts:?}");
        assert!(!has("/src/target") && !has("/src/.git"), "{puts:?}");
    }
}
