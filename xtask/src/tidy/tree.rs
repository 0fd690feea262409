//! The repository's files, read once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use miette::{IntoDiagnostic, Result, WrapErr};

/// One file: its path from the repository's root, and its text.
#[derive(Debug)]
pub struct File {
    path: String,
    /// Empty for a file that is no text.
    text: String,
}

impl File {
    /// Its path from the repository's root, with `/` between its parts.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The number, from 1, of the line that holds the byte at `offset`.
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
    /// Reads what lies under `root` and belongs to the repository: everything but `.git`, what the root's
    /// `.gitignore` names, and directories of caches (cargo marks its own with `CACHEDIR.TAG`).
    ///
    /// It does not ask git, so that it also works where there is none, and sees a new file before it is added.
    ///
    /// # Errors
    /// When a file or directory cannot be read, or `.gitignore` has a pattern that this does not understand.
    pub fn read(root: &Path) -> Result<Self> {
        let ignored = Ignored::read(root)?;
        let mut tree = Self { files: BTreeMap::new() };
        tree.add_directory(root, "", &ignored)?;
        Ok(tree)
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
        self.files.contains_key(path)
            || self
                .files
                .range(directory.clone()..)
                .next()
                .is_some_and(|(path, _)| path.starts_with(&directory))
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

    fn add_directory(&mut self, directory: &Path, prefix: &str, ignored: &Ignored) -> Result<()> {
        let failed = || format!("cannot read {}", directory.display());
        for entry in fs::read_dir(directory).into_diagnostic().wrap_err_with(failed)? {
            let entry = entry.into_diagnostic().wrap_err_with(failed)?;
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().into_diagnostic().wrap_err_with(failed)?;
            if ignored.contains(&path) || (kind.is_dir() && entry.path().join("CACHEDIR.TAG").exists()) {
                continue;
            }
            if kind.is_dir() {
                self.add_directory(&entry.path(), &format!("{path}/"), ignored)?;
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).into_diagnostic().wrap_err_with(|| path.clone())?;
                let text = String::from_utf8(bytes).unwrap_or_default();
                self.files.insert(path.clone(), File { path, text });
            }
        }
        Ok(())
    }
}

/// The two kinds of pattern that the root's `.gitignore` uses: `/path` and `*.extension`.
#[derive(Debug)]
struct Ignored {
    paths: Vec<String>,
    ends: Vec<String>,
}

impl Ignored {
    fn read(root: &Path) -> Result<Self> {
        let file = root.join(".gitignore");
        let text =
            fs::read_to_string(&file).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut ignored = Self { paths: vec![".git".to_owned()], ends: Vec::new() };
        for pattern in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let plain = |text: &str| !text.contains(['*', '?', '[', '!']);
            match (pattern.strip_prefix('/'), pattern.strip_prefix('*')) {
                (Some(path), _) if plain(path) => ignored.paths.push(path.trim_end_matches('/').to_owned()),
                (_, Some(end)) if plain(end) && !end.contains('/') => ignored.ends.push(end.to_owned()),
                _ => miette::bail!(
                    help = "write /path or *.extension, or teach xtask/src/tidy/tree.rs",
                    ".gitignore has the pattern {pattern:?}"
                ),
            }
        }
        Ok(ignored)
    }

    fn contains(&self, path: &str) -> bool {
        self.paths.iter().any(|ignored| ignored == path)
            || self.ends.iter().any(|end| path.ends_with(end.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_there_when_a_file_is_in_them() {
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
    fn only_what_belongs_to_the_repository_is_read() {
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

    #[test]
    fn a_pattern_that_is_not_understood_is_an_error() {
        assert!(Ignored::parse("/target\n*.pm\n").is_ok());
        for pattern in ["target", "!kept", "/a*", "*/b"] {
            assert!(Ignored::parse(pattern).is_err(), "{pattern}");
        }
    }
}
