//! The crates with tests in the simulator, and their test programs.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use serde_json::Value;

use super::program::{Package, Program};
use crate::cargo;

const SIMULATOR: &str = "pm-crashsim";

/// The named crates of the workspace in `root`, or all that depend on the simulator if `names` is empty.
pub fn packages(root: &Path, names: &[String]) -> Result<Vec<Package>> {
    let metadata = cargo::output(root, &["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_str(&metadata).into_diagnostic().wrap_err("cargo metadata")?;
    let all = metadata["packages"].as_array().into_iter().flatten();
    let all: Vec<_> = all.filter_map(|package| Some((package_of(package)?, can_simulate(package)))).collect();
    if names.is_empty() {
        return Ok(all.into_iter().filter_map(|(package, can)| can.then_some(package)).collect());
    }
    let named = |name: &String| {
        let found = all.iter().find(|(package, _)| package.name == *name);
        found
            .map(|(package, _)| package.clone())
            .ok_or_else(|| miette!("there is no crate {name} in the workspace"))
    };
    names.iter().map(named).collect()
}

/// Builds the tests of `packages`, and returns the test programs that contain the simulator.
pub fn build(root: &Path, packages: &[Package]) -> Result<Vec<Program>> {
    let mut arguments = vec!["test", "--quiet", "--no-run", "--tests"];
    arguments.extend(cargo::MESSAGES);
    match packages {
        [package] => arguments.extend(["--package", package.name.as_str()]),
        // Reuses the build of `cargo test --workspace`. A subset of the crates may need fewer features, and would be rebuilt.
        _ => arguments.push("--workspace"),
    }
    let messages = cargo::output(root, &arguments)?;
    let mut programs = Vec::new();
    for program in messages.lines().filter_map(|line| program_of(line, packages)) {
        if program.has_simulator()? {
            programs.push(program);
        }
    }
    Ok(programs)
}

fn package_of(package: &Value) -> Option<Package> {
    let directory = Path::new(package["manifest_path"].as_str()?).parent()?;
    Some(Package { name: package["name"].as_str()?.to_owned(), directory: directory.to_owned() })
}

fn can_simulate(package: &Value) -> bool {
    let mut dependencies = package["dependencies"].as_array().into_iter().flatten();
    package["name"] == SIMULATOR || dependencies.any(|dependency| dependency["name"] == SIMULATOR)
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
    fn crates_without_simulator_are_excluded() {
        let names: Vec<String> = packages(cargo::root(), &[])
            .expect("a workspace")
            .into_iter()
            .map(|package| package.name)
            .collect();
        for (name, is_asked) in [("pm-core", true), ("pm-crashsim", true), ("pm-core-derive", false)] {
            assert_eq!(names.iter().any(|found| found == name), is_asked, "{names:?}");
        }
        assert!(packages(cargo::root(), &["no-such-crate".to_owned()]).is_err());
    }

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let package = Package { name: "a".to_owned(), directory: "/w/a".into() };
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
