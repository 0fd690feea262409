//! A file system to be: what goes where in the guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One thing in the guest's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// A directory anyone may read.
    Directory,
    /// A character device.
    Device { major: u32, minor: u32 },
    /// A symbolic link to this target.
    Symlink(String),
    /// A file with this content.
    Text { mode: u32, text: String },
    /// A file with the content of a file of the host.
    File { mode: u32, host: PathBuf },
}

/// Directories that are links into `/usr`, as on Debian. Here `/usr/sbin` is one too: with one directory of
/// programs, what provides a name is decided once, when the image is built, and not by an order of
/// directories.
const MERGED: [(&str, &str); 5] = [
    ("usr/sbin", "usr/bin"),
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];

/// Paths without a leading slash, in an order that has each directory before what is in it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Nothing at all: for an archive that adds to another one.
    pub(super) fn empty() -> Self {
        Self::default()
    }

    /// The directories and links that every guest has, and the console, which the kernel opens before
    /// anything is mounted.
    pub(super) fn new() -> Self {
        let mut tree = Self::empty();
        for directory in
            ["usr/bin", "usr/lib", "usr/lib64", "dev", "proc", "sys", "tmp", "run", "mnt", "root", "etc"]
        {
            tree.directory(directory);
        }
        for (link, target) in MERGED {
            let target = if link == "usr/sbin" { "bin" } else { target };
            tree.nodes.insert(link.to_owned(), Node::Symlink(target.to_owned()));
        }
        tree.insert("dev/console", Node::Device { major: 5, minor: 1 });
        tree
    }

    /// Every path and what is there.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// Whether something is at `path`.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.nodes.contains_key(&canonical(path))
    }

    /// A directory, and those above it.
    pub(super) fn directory(&mut self, path: &str) {
        let path = canonical(path);
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            self.nodes.entry(path[..end].to_owned()).or_insert(Node::Directory);
        }
    }

    /// A file with this content.
    pub(super) fn text(&mut self, path: &str, mode: u32, text: &str) {
        self.insert(path, Node::Text { mode, text: text.to_owned() });
    }

    /// A file with the content of the host's file `host`.
    pub(super) fn file(&mut self, path: &str, host: &Path, mode: u32) {
        self.insert(path, Node::File { mode, host: host.to_owned() });
    }

    /// A symbolic link.
    pub(super) fn symlink(&mut self, path: &str, target: &str) {
        self.insert(path, Node::Symlink(target.to_owned()));
    }

    fn insert(&mut self, path: &str, node: Node) {
        let path = canonical(path);
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        self.nodes.insert(path, node);
    }
}

/// `path` without its leading slash, and with the linked directories followed: an archive must not have
/// entries below a link.
fn canonical(path: &str) -> String {
    let path = path.trim_matches('/');
    for (link, target) in MERGED {
        if let Some(rest) = path.strip_prefix(link).and_then(|rest| rest.strip_prefix('/')) {
            return format!("{target}/{rest}");
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_comes_before_what_is_in_it() {
        let mut tree = Tree::empty();
        tree.text("/a/b-c", 0o644, "");
        tree.text("/a/b/c", 0o644, "");
        let paths: Vec<_> = tree.nodes().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a", "a/b", "a/b-c", "a/b/c"]);
    }

    #[test]
    fn nothing_lies_below_a_link() {
        let mut tree = Tree::new();
        for path in ["/sbin/x", "/usr/sbin/y", "/bin/z", "/lib/l", "/lib64/m"] {
            tree.text(path, 0o755, "");
        }
        for path in ["usr/bin/x", "usr/bin/y", "usr/bin/z", "usr/lib/l", "usr/lib64/m"] {
            assert!(tree.nodes().any(|(found, _)| found == path), "{path}");
        }
        assert!(tree.contains("/sbin/z"));
        assert_eq!(
            tree.nodes().find(|(path, _)| *path == "sbin"),
            Some(("sbin", &Node::Symlink("usr/bin".into())))
        );
    }
}
