//! The crates of a workspace.

use std::path::{Path, PathBuf};

use miette::Result;
use serde_json::Value;

use crate::cargo;

const SIMULATOR: &str = "pm-crashsim";

/// A crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The directory of its `Cargo.toml`, in which its tests run.
    pub directory: PathBuf,
    /// Whether it is the simulator, or depends on it.
    pub can_simulate: bool,
}

/// Every crate of the workspace in `root`.
pub fn packages(root: &Path) -> Result<Vec<Package>> {
    let metadata = cargo::metadata(root)?;
    Ok(metadata["packages"].as_array().into_iter().flatten().filter_map(package_of).collect())
}

fn package_of(package: &Value) -> Option<Package> {
    let directory = Path::new(package["manifest_path"].as_str()?).parent()?.to_owned();
    let mut dependencies = package["dependencies"].as_array().into_iter().flatten();
    let can_simulate =
        package["name"] == SIMULATOR || dependencies.any(|dependency| dependency["name"] == SIMULATOR);
    Some(Package { name: package["name"].as_str()?.to_owned(), directory, can_simulate })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_that_use_the_simulator_are_known() {
        let packages = packages(cargo::root()).expect("a workspace");
        for (name, can_simulate) in [("pm-core", true), ("pm-crashsim", true), ("pm-core-derive", false)] {
            let package = packages.iter().find(|package| package.name == name).expect(name);
            assert_eq!(package.can_simulate, can_simulate, "{name}");
        }
    }
}
