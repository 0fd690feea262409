//! The source files whose flushes and fences have all been tried, by the git blobs of their contents: `.ci/teeth`.
//!
//! While a file has the same contents its sites need not be tried again, unless a test has become weaker. `./x test` tries the other files' sites, and
//! `./x test --deep` tries all and writes the list.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use miette::{IntoDiagnostic, Result, WrapErr, ensure};

use crate::process;

/// The path of the list in the repository.
const LIST: &str = ".ci/teeth";

/// Files, by their paths in the repository, and the git blobs of their contents.
pub type Blobs = BTreeMap<String, String>;

/// The list of a repository.
#[derive(Debug)]
pub struct Baseline {
    tried: Blobs,
}

impl Baseline {
    /// Reads the list of the repository in `root`, which is empty if there is none.
    ///
    /// # Errors
    /// If it cannot be read, or is not a list.
    pub fn read(root: &Path) -> Result<Self> {
        let text = match fs::read_to_string(root.join(LIST)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).into_diagnostic().wrap_err(LIST),
        };
        let mut tried = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (blob, file) = line.split_once(' ').unwrap_or_default();
            ensure!(!file.is_empty(), "{LIST}: {line:?} is not a blob and a path");
            tried.insert(file.to_owned(), blob.to_owned());
        }
        Ok(Self { tried })
    }

    /// Those of these files whose contents the list does not have.
    #[must_use]
    pub fn changed<'b>(&self, files: &'b Blobs) -> Vec<&'b str> {
        let changed = files.iter().filter(|(file, blob)| self.tried.get(*file) != Some(*blob));
        changed.map(|(file, _)| file.as_str()).collect()
    }

    /// Replaces the list: all sites of these files, with these contents, have been tried.
    ///
    /// # Errors
    /// If the list cannot be written.
    pub fn write(root: &Path, files: &Blobs) -> Result<()> {
        let mut text =
            "# Files whose flushes and fences were all tried; written by ./x test --deep.\n".to_owned();
        for (file, blob) in files {
            text += &format!("{blob} {file}\n");
        }
        fs::write(root.join(LIST), text).into_diagnostic().wrap_err(LIST)
    }
}

/// The git blob of the contents of each of these files of the repository in `root`, as they are now.
///
/// # Errors
/// If git cannot hash them.
pub fn blobs(root: &Path, files: &[String]) -> Result<Blobs> {
    if files.is_empty() {
        return Ok(Blobs::new());
    }
    let blobs =
        process::output(Command::new("git").current_dir(root).arg("hash-object").arg("--").args(files))?;
    let blobs: Vec<String> = blobs.lines().map(str::to_owned).collect();
    ensure!(blobs.len() == files.len(), "git has hashed {} of {} files", blobs.len(), files.len());
    Ok(files.iter().cloned().zip(blobs).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_changed_unless_its_contents_are_listed() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        fs::create_dir(root.join(".ci")).expect("created");
        let files = ["a.rs", "b c.rs"].map(str::to_owned);
        for file in &files {
            fs::write(root.join(file), file).expect("written");
        }
        let now = |files: &[String]| blobs(root, files).expect("hashed");
        let changed = || {
            let now = now(&files);
            Baseline::read(root).expect("a list").changed(&now).join(" ")
        };
        assert_eq!(changed(), "a.rs b c.rs");
        Baseline::write(root, &now(&files)).expect("written");
        assert_eq!(changed(), "");
        fs::write(root.join("b c.rs"), "new").expect("written");
        assert_eq!(changed(), "b c.rs");
        fs::write(root.join("b c.rs"), "b c.rs").expect("written");
        assert_eq!(changed(), "");

        Baseline::write(root, &now(&files[..1])).expect("written");
        assert_eq!(changed(), "b c.rs");
        fs::write(root.join(LIST), "no-blob\n").expect("written");
        assert!(Baseline::read(root).is_err());
    }
}
