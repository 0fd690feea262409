//! Builds `pmbd` for a guest.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};
use serde_json::Value;

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
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--package", "pmbd-ublk", "--bin", "pmbd"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stderr(Stdio::inherit());
    if profile == Profile::Release {
        command.arg("--release");
    }
    let output = command.output().into_diagnostic().wrap_err("cannot run cargo")?;
    if !output.status.success() {
        bail!("pmbd does not build: cargo ended with {}", output.status);
    }
    executable(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| miette!("cargo named no executable"))
}

/// The program that cargo's messages, one JSON object a line, name.
fn executable(messages: &str) -> Option<PathBuf> {
    let named = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    };
    messages.lines().filter_map(named).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-artifact","executable":"/target/debug/pmbd"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some("/target/debug/pmbd".into()));
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
