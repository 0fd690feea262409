//! What a file's bytes live on, and the persistence domain that follows from it.

use crate::Domain;
use rustix::fs::{FileType, Stat};
use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// What a region's bytes live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// A file on a DAX file system, mapped with `MAP_SYNC`: stores go to the medium with no page cache between.
    DaxFile,
    /// A device-dax character device (`/dev/dax0.0`).
    DeviceDax,
    /// A file on tmpfs or ramfs, or an anonymous memory file.
    Tmpfs,
    /// A file on hugetlbfs.
    Hugetlbfs,
    /// A file on any other file system, reached through the page cache.
    File,
}

impl Medium {
    /// A stable lower-case name for machines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DaxFile => "dax-file",
            Self::DeviceDax => "device-dax",
            Self::Tmpfs => "tmpfs",
            Self::Hugetlbfs => "hugetlbfs",
            Self::File => "file",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DaxFile => "a file on a DAX file system",
            Self::DeviceDax => "a device-dax",
            Self::Tmpfs => "memory (tmpfs)",
            Self::Hugetlbfs => "memory (hugetlbfs)",
            Self::File => "an ordinary file",
        })
    }
}

/// What `statfs` calls the file systems in memory (`linux/magic.h`).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// The medium as far as `statfs` tells. Whether another file is DAX, only `mmap` with `MAP_SYNC` tells.
pub(super) fn of_file_system(file: impl AsFd) -> Result<(Option<Medium>, u64), rustix::io::Errno> {
    let fs = rustix::fs::fstatfs(file)?;
    // Both are small positive numbers on every architecture; only their signedness differs.
    let (magic, block_bytes) = (fs.f_type as u64 & 0xffff_ffff, fs.f_bsize as u64);
    Ok(match magic {
        TMPFS_MAGIC | RAMFS_MAGIC => (Some(Medium::Tmpfs), 4096),
        HUGETLBFS_MAGIC => (Some(Medium::Hugetlbfs), block_bytes),
        _ => (None, 4096),
    })
}

/// The kind of a file that cannot be mapped, or `None` for one that may be.
pub(super) fn unmappable_kind(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::CharacterDevice => None,
        FileType::Directory => Some("directory"),
        FileType::BlockDevice => Some("block device"),
        FileType::Socket => Some("socket"),
        FileType::Fifo => Some("pipe"),
        _ => Some("special file"),
    }
}

/// The sysfs directory of a device-dax, or `None` if the character device is something else.
pub(super) fn device_dax_dir(stat: &Stat) -> Option<PathBuf> {
    let dir = sysfs_dir("char", stat.st_rdev);
    let subsystem = std::fs::canonicalize(dir.join("subsystem")).ok()?;
    (subsystem.file_name()? == "dax").then_some(dir)
}

/// A device-dax's size and the alignment that its mappings must have, from sysfs.
pub(super) fn device_dax_geometry(dir: &Path) -> std::io::Result<(u64, u64)> {
    let number = |name: &str| -> std::io::Result<u64> {
        let text = std::fs::read_to_string(dir.join(name))?;
        text.trim().parse().map_err(|_| std::io::Error::other(format!("{name} reads {text:?}")))
    };
    // Kernels before 5.11 do not say; 2 MiB is the default alignment of a namespace.
    Ok((number("size")?, number("align").unwrap_or(2 << 20)))
}

/// The domain of a DAX file on the block device `st_dev`, or of a device-dax.
///
/// The nd region above the namespace knows what its platform keeps. That caches are kept too is assumed only where it says
/// so. Where there is none, a file that could be mapped with `MAP_SYNC` is persistent all the same, for that is what the
/// flag asks; but a device-dax is also how Linux shows memory that forgets (high-bandwidth memory, CXL memory that is not
/// persistent), so that nothing is promised for it.
///
/// # Source
/// Linux `Documentation/ABI/testing/sysfs-bus-nd`: `persistence_domain` is `cpu_cache`, `memory_controller` or
/// unknown.
pub(super) fn dax_domain(stat: &Stat) -> Domain {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => {
            domain_above(&sysfs_dir("char", stat.st_rdev)).unwrap_or(Domain::Volatile)
        }
        _ => domain_above(&sysfs_dir("block", stat.st_dev)).unwrap_or(Domain::Adr),
    }
}

/// What the nd region above a device says, if there is one.
fn domain_above(device_dir: &Path) -> Option<Domain> {
    let dir = std::fs::canonicalize(device_dir).ok()?;
    let says = dir.ancestors().find_map(|d| std::fs::read_to_string(d.join("persistence_domain")).ok())?;
    Some(if says.trim() == "cpu_cache" { Domain::Eadr } else { Domain::Adr })
}

fn sysfs_dir(kind: &str, device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    PathBuf::from(format!("/sys/dev/{kind}/{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nd_region_above_a_namespace_names_the_domain() {
        let root = tempfile::tempdir().unwrap();
        let namespace = root.path().join("region0/namespace0.0/block/pmem0");
        std::fs::create_dir_all(&namespace).unwrap();
        assert_eq!(domain_above(&namespace), None, "nobody says");
        for (says, domain) in
            [("cpu_cache\n", Domain::Eadr), ("memory_controller\n", Domain::Adr), ("unknown\n", Domain::Adr)]
        {
            std::fs::write(root.path().join("region0/persistence_domain"), says).unwrap();
            assert_eq!(domain_above(&namespace), Some(domain), "{says:?}");
        }
    }
}
