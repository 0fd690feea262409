//! Builds the agent that runs in the guest.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use miette::{IntoDiagnostic, Result, WrapErr, bail};

use super::cache::Cache;
use super::initramfs::Key;

/// The agent's two files. Their text stands in this program too, so that a change of either leads to another
/// key.
const SOURCES: [&str; 2] = [include_str!("../bin/vm-agent.rs"), include_str!("frame.rs")];

/// The agent as a static program, compiled when the cache does not have it.
///
/// rustc is called directly: the agent has no dependencies, and cargo would compile those of the whole
/// package again for another set of flags.
pub(super) fn obtain(cache: &Cache) -> Result<PathBuf> {
    let mut key = Key::new();
    key.add(SOURCES);
    cache.file("agent", &key.finish(), |path| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/vm-agent.rs");
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args(["--edition=2024", "--crate-name=vm_agent", "--crate-type=bin"])
            .args(["-Copt-level=2", "-Cpanic=abort", "-Cstrip=symbols", "-Ctarget-feature=+crt-static"])
            .arg(&source)
            .arg("-o")
            .arg(path)
            .output()
            .into_diagnostic()
            .wrap_err("cannot run rustc")?;
        if !output.status.success() {
            bail!("cannot compile {}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    })
}
