//! The guest's file tree, and its archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use cpio::newc;

/// An entry of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// A directory with mode 755.
    Directory,
    /// A character device.
    Device { major: u32, minor: u32 },
    /// A symbolic link to this target.
    Symlink(String),
    /// A file with this content.
    Text { mode: u32, text: String },
    /// A file with the content of a host file.
    File { mode: u32, host: PathBuf },
}

/// Directories that are links into `/usr`, as on Debian, and `/usr/sbin`: with one directory for programs, each name has one program, and the order of
/// `PATH` does not matter.
const MERGED: [(&str, &str); 5] = [
    ("usr/sbin", "usr/bin"),
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];

/// Entries by path, without a leading slash. Each directory is sorted before its contents.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// An empty tree, for an archive that extends another one.
    pub(super) fn empty() -> Self {
        Self::default()
    }

    /// A tree with the directories and links of every guest, and the console, which the kernel opens before it mounts file systems.
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

    /// Every path and its entry.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// Writes the cpio archive ("newc") that the kernel unpacks as its first file system. An initramfs may be a sequence of archives, each padded to a
    /// multiple of four bytes; later files replace earlier ones.
    ///
    /// # Source
    /// The kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        // Equal inode numbers would mean hard links.
        for (inode, (path, node)) in (1..).zip(self.nodes()) {
            let entry = newc::Builder::new(path).ino(inode).nlink(1);
            let written = match node {
                Node::Directory => append(out, entry.mode(0o040_755), b"".as_slice(), 0),
                Node::Device { major, minor } => {
                    let entry = entry.mode(0o020_600).rdev_major(*major).rdev_minor(*minor);
                    append(out, entry, b"".as_slice(), 0)
                }
                Node::Symlink(target) => {
                    append(out, entry.mode(0o120_777), target.as_bytes(), target.len() as u64)
                }
                Node::Text { mode, text } => {
                    append(out, entry.mode(0o100_000 | mode), text.as_bytes(), text.len() as u64)
                }
                Node::File { mode, host } => File::open(host).and_then(|file| {
                    let size = file.metadata()?.len();
                    append(out, entry.mode(0o100_000 | mode), file, size)
                }),
            };
            written.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        }
        newc::trailer(out).map(drop)
    }

    /// Whether there is an entry at `path`.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.nodes.contains_key(&canonical(path))
    }

    /// Adds a directory and its parents.
    pub(super) fn directory(&mut self, path: &str) {
        let path = canonical(path);
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            self.nodes.entry(path[..end].to_owned()).or_insert(Node::Directory);
        }
    }

    /// Adds a file with this content.
    pub(super) fn text(&mut self, path: &str, mode: u32, text: &str) {
        self.insert(path, Node::Text { mode, text: text.to_owned() });
    }

    /// Adds a file with the content of the host's file `host`.
    pub(super) fn file(&mut self, path: &str, host: &Path, mode: u32) {
        self.insert(path, Node::File { mode, host: host.to_owned() });
    }

    /// Adds a symbolic link.
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

fn append(out: &mut impl Write, entry: newc::Builder, content: impl Read, size: u64) -> io::Result<()> {
    let too_large = |_| io::Error::new(ErrorKind::FileTooLarge, "does not fit the archive's 32-bit sizes");
    let mut writer = entry.write(out, u32::try_from(size).map_err(too_large)?);
    if io::copy(&mut content.take(size), &mut writer)? != size {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "shrank while it was read"));
    }
    writer.finish().map(drop)
}

/// `path` without its leading slash, and with links of [`MERGED`] resolved: an archive must not have entries below a link.
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
    fn directory_precedes_its_contents() {
        let mut tree = Tree::empty();
        tree.text("/a/b-c", 0o644, "");
        tree.text("/a/b/c", 0o644, "");
        let paths: Vec<_> = tree.nodes().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a", "a/b", "a/b-c", "a/b/c"]);
    }

    fn archive(tree: &Tree) -> Vec<u8> {
        let mut bytes = Vec::new();
        tree.write(&mut bytes).expect("writing to a vector does not fail");
        bytes
    }

    #[test]
    fn archive_of_one_file_matches_golden_bytes() {
        let mut tree = Tree::empty();
        tree.text("a", 0o644, "hello");
        let expected = concat!(
            "070701",
            "00000001000081a400000000000000000000000100000000",
            "000000050000000000000000000000000000000000000002",
            "00000000a\0",
            "hello\0\0\0",
            "070701",
            "000000000000000000000000000000000000000100000000",
            "00000000000000000000000000000000000000000000000b",
            "00000000TRAILER!!!\0\0\0\0",
        );
        assert_eq!(String::from_utf8_lossy(&archive(&tree)), expected);
    }

    #[test]
    fn archive_length_is_multiple_of_four() {
        for length in 0..9 {
            let mut tree = Tree::empty();
            tree.text(&"n".repeat(length + 1), 0o644, &"x".repeat(length));
            assert_eq!(archive(&tree).len() % 4, 0, "{length}");
        }
    }

    #[test]
    fn linked_directories_are_resolved() {
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
