//! Builds test programs by cargo.

use std::path::{Path, PathBuf};

use miette::{Result, bail};
use serde_json::Value;

use super::package::Package;
use super::program::Program;
use crate::cargo;

/// Builds the tests of `packages`, and returns the test programs.
pub fn build(root: &Path, packages: &[Package]) -> Result<Vec<Program>> {
    let mut arguments = vec!["test", "--quiet", "--no-run", "--tests"];
    arguments.extend(cargo::MESSAGES);
    match packages {
        [] => bail!("no crate is selected"),
        [package] => arguments.extend(["--package", package.name.as_str()]),
        // Reuses the build of the whole workspace. A subset of the crates may need fewer features, and would be rebuilt.
        _ => arguments.push("--workspace"),
    }
    let messages = cargo::output(root, &arguments)?;
    Ok(messages.lines().filter_map(|line| program_of(line, packages)).collect())
}

/// The test program in one of cargo's messages, if it has one.
fn program_of(message: &str, packages: &[Package]) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = packages.iter().find(|package| package.directory == directory)?;
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let source = source.strip_prefix(directory).unwrap_or(source);
    Some(Program { package: package.clone(), source: source.display().to_string(), executable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_not_the_whole_workspace() {
        assert!(build(cargo::root(), &[]).is_err());
    }

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let package = Package { name: "a".to_owned(), directory: "/w/a".into(), can_simulate: true };
        let message = |test: bool, manifest: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"{manifest}","target":{{"src_path":"/w/a/tests/b.rs"}},
                "profile":{{"test":{test}}},"executable":"/target/b-1"}}"#
            )
        };
        let packages = [package.clone()];
        let program = Program { package, source: "tests/b.rs".to_owned(), executable: "/target/b-1".into() };
        assert_eq!(program_of(&message(true, "/w/a/Cargo.toml"), &packages), Some(program));
        assert_eq!(program_of(&message(false, "/w/a/Cargo.toml"), &packages), None);
        assert_eq!(program_of(&message(true, "/w/b/Cargo.toml"), &packages), None);
        assert_eq!(program_of(r#"{"reason":"build-finished","success":true}"#, &packages), None);
    }
}
