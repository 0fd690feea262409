//! The file with the password of a cluster.

use miette::{Context as _, IntoDiagnostic as _, miette};
use std::fs;
use std::path::Path;

/// The first line of the file.
pub(super) fn read(file: Option<&Path>) -> miette::Result<Option<Vec<u8>>> {
    let Some(file) = file else { return Ok(None) };
    let bytes = fs::read(file).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let password = line.strip_suffix(b"\r").unwrap_or(line);
    if password.is_empty() {
        return Err(miette!("{}: the password is empty", file.display()));
    }
    Ok(Some(password.to_vec()))
}
