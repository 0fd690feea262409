//! Writes the archive format that the kernel unpacks as its first file system: cpio, "newc".
//!
//! # Source
//! The kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};

use super::tree::{Node, Tree};

/// Writes `tree` as one archive. Archives may follow each other in one initramfs, later files replacing
/// earlier ones: each ends on a multiple of four bytes.
pub(super) fn write(tree: &Tree, out: &mut impl Write) -> io::Result<()> {
    let mut writer = Writer { out, inode: 0 };
    for (path, node) in tree.nodes() {
        match node {
            Node::Directory => writer.header(path, 0o040_755, 0, (0, 0))?,
            Node::Device { major, minor } => writer.header(path, 0o020_600, 0, (*major, *minor))?,
            Node::Symlink(target) => writer.bytes(path, 0o120_777, target.as_bytes())?,
            Node::Text { mode, text } => writer.bytes(path, 0o100_000 | mode, text.as_bytes())?,
            Node::File { mode, host } => writer.file(path, 0o100_000 | mode, &mut File::open(host)?)?,
        }
    }
    writer.header("TRAILER!!!", 0, 0, (0, 0))
}

struct Writer<'a, W> {
    out: &'a mut W,
    inode: u32,
}

impl<W: Write> Writer<'_, W> {
    /// A header of 13 numbers of 8 hexadecimal digits, and the name, padded together to four bytes.
    fn header(&mut self, name: &str, mode: u32, size: u32, device: (u32, u32)) -> io::Result<()> {
        // An inode number of its own for every entry: equal ones with several links would mean hard links.
        self.inode += 1;
        let name_bytes = u32::try_from(name.len() + 1).map_err(|_| too_large(name))?;
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_bytes, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(header.len() + name.len() + 1)
    }

    fn bytes(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.header(name, mode, u32::try_from(bytes.len()).map_err(|_| too_large(name))?, (0, 0))?;
        self.out.write_all(bytes)?;
        self.pad(bytes.len())
    }

    fn file(&mut self, name: &str, mode: u32, file: &mut File) -> io::Result<()> {
        let size = u32::try_from(file.metadata()?.len()).map_err(|_| too_large(name))?;
        self.header(name, mode, size, (0, 0))?;
        let copied = io::copy(&mut file.take(u64::from(size)), self.out)?;
        if copied != u64::from(size) {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, format!("{name} shrank while it was read")));
        }
        self.pad(size as usize)
    }

    fn pad(&mut self, length: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..length.next_multiple_of(4) - length])
    }
}

fn too_large(name: &str) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("{name} does not fit the archive's 32-bit sizes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(tree: &Tree) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(tree, &mut bytes).expect("a vector takes everything");
        bytes
    }

    #[test]
    fn one_text_file_byte_for_byte() {
        let mut tree = Tree::empty();
        tree.text("a", 0o644, "hello");
        let expected = concat!(
            "070701",
            "00000001000081a400000000000000000000000100000000",
            "000000050000000000000000000000000000000000000002",
            "00000000a\0",
            "hello\0\0\0",
            "070701",
            "000000020000000000000000000000000000000100000000",
            "00000000000000000000000000000000000000000000000b",
            "00000000TRAILER!!!\0\0\0\0",
        );
        assert_eq!(String::from_utf8_lossy(&archive(&tree)), expected);
    }

    #[test]
    fn every_archive_ends_on_four_bytes() {
        for length in 0..9 {
            let mut tree = Tree::empty();
            tree.text(&"n".repeat(length + 1), 0o644, &"x".repeat(length));
            assert_eq!(archive(&tree).len() % 4, 0, "{length}");
        }
    }
}
