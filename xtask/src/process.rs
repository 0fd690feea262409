//! Runs programs to their end. In a file of its own, because tasks, guests and benchmarks share it.

use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr, bail};

/// Runs a program that must succeed, and returns its standard output. An error has its standard error, unless that is inherited.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().into_diagnostic().wrap_err_with(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed: {}\n{}", output.status, errors.trim_end());
    }
    String::from_utf8(output.stdout).into_diagnostic()
}

/// Whether a program can be run and succeeds. Its standard output is discarded.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
