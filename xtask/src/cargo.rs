//! Runs cargo in this repository, and finds build results.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use serde_json::Value;

use crate::process;

/// Prints a JSON object for each build result to standard output, and diagnostics to standard error.
pub(crate) const MESSAGES: [&str; 2] = ["--message-format", "json-render-diagnostics"];

/// The repository's root.
#[must_use]
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The cargo that runs this program, so that all builds use one toolchain.
#[must_use]
pub fn command() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds a package with these options, and returns the path of the resulting program or library of this file name.
pub fn build(package: &str, options: &[&str], file_name: &str) -> Result<PathBuf> {
    let arguments = [&["build", "--quiet", "--package", package], &MESSAGES[..], options].concat();
    let messages = output(root(), &arguments)?;
    artifact(&messages, file_name).ok_or_else(|| miette!("cargo has built no {file_name}"))
}

/// Builds an integration test of a package, and returns the path of its program.
pub fn build_test(package: &str, test: &str) -> Result<PathBuf> {
    let arguments = [&["test", "--no-run", "--quiet", "--package", package, "--test", test], &MESSAGES[..]];
    let messages = output(root(), &arguments.concat())?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter(|message| message["target"]["name"] == test);
    let program = programs.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    program.ok_or_else(|| miette!("cargo has built no test {test}"))
}

/// The metadata of the workspace in `root`: its packages, and its target directory.
pub(crate) fn metadata(root: &Path) -> Result<Value> {
    let metadata = output(root, &["metadata", "--no-deps", "--format-version", "1"])?;
    serde_json::from_str(&metadata).into_diagnostic().wrap_err("cargo metadata")
}

/// The directory of the build results of the workspace in `root`.
pub(crate) fn target_directory(root: &Path) -> Result<PathBuf> {
    let metadata = metadata(root)?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .ok_or_else(|| miette!("cargo names no target directory"))
}

/// Runs cargo in `root`, and returns its standard output.
pub(crate) fn output(root: &Path, arguments: &[&str]) -> Result<String> {
    process::output(command().args(arguments).current_dir(root).stderr(Stdio::inherit()))
}

/// The path of the file of this name in cargo's messages.
fn artifact(messages: &str, file_name: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    files.filter_map(|file| file.as_str().map(PathBuf::from)).find(|file| file.ends_with(file_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_found_among_messages() {
        let messages = r#"{"reason":"compiler-artifact","filenames":["/target/debug/libpmbd.rlib"]}
{"reason":"compiler-artifact","filenames":["/target/debug/pmbd"],"executable":"/target/debug/pmbd"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(artifact(messages, "pmbd"), Some("/target/debug/pmbd".into()));
        assert_eq!(artifact(messages, "pm"), None);
    }
}
