//! The repository's files.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

use ignore::WalkBuilder;
use miette::{IntoDiagnostic, Result, WrapErr};

/// A file of the repository.
#[derive(Debug)]
pub struct File {
    path: String,
    /// Empty for a binary file.
    text: String,
}

impl File {
    /// The path from the repository's root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The text, empty for a binary file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line number, from 1, of the byte at `offset`.
    pub fn line_of(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
    }
}

/// The repository's files, sorted by path.
#[derive(Debug)]
pub struct Tree {
    files: BTreeMap<String, File>,
}

impl Tree {
    /// Reads all files below `root` except `.git`, files that `.gitignore` names, and cache directories, which `CACHEDIR.TAG` marks, such as cargo's.
    /// It does not use git, and so includes files that are not added yet.
    pub fn read(root: &Path) -> Result<Self> {
        let mut walk = WalkBuilder::new(root);
        walk.standard_filters(false).git_ignore(true).require_git(false);
        walk.filter_entry(|entry| entry.file_name() != ".git" && !entry.path().join("CACHEDIR.TAG").exists());
        let mut files = BTreeMap::new();
        for entry in walk.build() {
            let entry = entry.into_diagnostic()?;
            if entry.file_type().is_some_and(|kind| kind.is_file()) {
                let path = entry.path().strip_prefix(root).into_diagnostic()?.to_string_lossy().into_owned();
                let bytes = fs::read(entry.path()).into_diagnostic().wrap_err_with(|| path.clone())?;
                let text = String::from_utf8(bytes).unwrap_or_default();
                files.insert(path.clone(), File { path, text });
            }
        }
        Ok(Self { files })
    }

    /// A tree of these paths and texts: for tests.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        Self { files: files.iter().map(|&(path, text)| (path.to_owned(), file(path, text))).collect() }
    }

    /// The file at `path`.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// Whether there is a file or a directory at `path`.
    pub fn has(&self, path: &str) -> bool {
        let directory = format!("{}/", path.trim_end_matches('/'));
        let first = self.files.range(directory.clone()..).next();
        self.files.contains_key(path) || first.is_some_and(|(path, _)| path.starts_with(&directory))
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    /// The files whose name ends in `.extension`.
    pub fn with_extension(&self, extension: &str) -> impl Iterator<Item = &File> {
        let end = format!(".{extension}");
        self.files().filter(move |file| file.path.ends_with(&end))
    }
}

/// A violation of a rule, displayed as `path:line: message`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl Violation {
    pub(super) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }

    /// A violation at the byte at `offset` of `file`.
    pub(super) fn at(file: &File, offset: usize, message: impl Into<String>) -> Self {
        Self::new(file.path(), file.line_of(offset), message)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// `path:line` of each violation, for tests.
#[cfg(test)]
pub(super) fn places(violations: &[Violation]) -> Vec<String> {
    violations.iter().map(|violation| format!("{}:{}", violation.path, violation.line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_with_a_file_exists() {
        let tree = Tree::of(&[("a/b.rs", ""), ("a.md", "")]);
        assert!(tree.has("a/b.rs") && tree.has("a") && tree.has("a/"));
        assert!(!tree.has("b") && !tree.has("a/b") && !tree.has(""));
    }

    #[test]
    fn lines_count_from_one() {
        let tree = Tree::of(&[("a", "1\n2\n3")]);
        let file = tree.get("a").expect("it is there");
        assert_eq!([0, 1, 2, 4].map(|offset| file.line_of(offset)), [1, 1, 2, 3]);
    }

    #[test]
    fn ignored_files_are_not_read() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        };
        write(".gitignore", b"# built\n/built\n*.pm\n");
        write(".git/config", b"");
        write("built/x", b"");
        write("a/built", b"yes");
        write("a/disk.pm", b"");
        write("cache/CACHEDIR.TAG", b"");
        write("picture.png", b"\x89PNG");
        let tree = Tree::read(root.path()).expect("readable");
        let paths: Vec<_> = tree.files().map(File::path).collect();
        assert_eq!(paths, [".gitignore", "a/built", "picture.png"]);
        assert_eq!(tree.get("a/built").map(File::text), Some("yes"));
        assert_eq!(tree.get("picture.png").map(File::text), Some(""));
    }
}
