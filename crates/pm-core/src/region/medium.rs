//! The medium of a region, and the resulting persistence domain.

use super::overlay;
use crate::Domain;
use rustix::fs::{FileType, Stat};
use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The medium that holds the bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// A file on a DAX file system, mapped with `MAP_SYNC`: stores reach the medium without a page cache.
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
    /// A stable lower-case name, for machine-readable output.
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

/// The magic numbers of in-memory file systems in `statfs` (`linux/magic.h`).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// The medium, if `statfs` identifies it, and the unit of file lengths. For other files, only `mmap` with `MAP_SYNC` detects DAX.
pub(super) fn of_file_system(file: impl AsFd) -> Result<(Option<Medium>, u64), rustix::io::Errno> {
    let fs = rustix::fs::fstatfs(file)?;
    // Both fields are small positive numbers on every architecture; only the signedness of their types differs.
    let (magic, block_bytes) = (fs.f_type as u64 & 0xffff_ffff, fs.f_bsize as u64);
    Ok(match magic {
        TMPFS_MAGIC | RAMFS_MAGIC => (Some(Medium::Tmpfs), 4096),
        HUGETLBFS_MAGIC => (Some(Medium::Hugetlbfs), block_bytes),
        _ => (None, 4096),
    })
}

/// Whether a file lies on an overlay on which synced data does not survive a power failure.
pub(super) fn is_on_volatile_overlay(file: impl AsFd) -> std::io::Result<bool> {
    let magic = rustix::fs::fstatfs(&file)?.f_type as u64 & 0xffff_ffff;
    let is_memory = |magic| matches!(magic, TMPFS_MAGIC | RAMFS_MAGIC);
    if magic == overlay::OVERLAYFS_MAGIC { overlay::is_volatile(file, is_memory) } else { Ok(false) }
}

/// The kind of a file that cannot be mapped. `None` for regular files and character devices.
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

/// The sysfs directory of a device-dax. `None` for other character devices.
pub(super) fn device_dax_dir(stat: &Stat) -> Option<PathBuf> {
    let dir = sysfs_dir("char", stat.st_rdev);
    let subsystem = std::fs::canonicalize(dir.join("subsystem")).ok()?;
    (subsystem.file_name()? == "dax").then_some(dir)
}

/// The size of a device-dax and the alignment required of its mappings, from sysfs.
pub(super) fn device_dax_geometry(dir: &Path) -> std::io::Result<(u64, u64)> {
    let number = |name: &str| -> std::io::Result<u64> {
        let text = std::fs::read_to_string(dir.join(name))?;
        text.trim()
            .parse()
            .map_err(|_| std::io::Error::other(format!("{name} contains {text:?}, not a number")))
    };
    // Kernels before 5.11 have no `align`; 2 MiB is the default of a namespace.
    Ok((number("size")?, number("align").unwrap_or(2 << 20)))
}

/// The domain of a DAX file on the block device `st_dev`, or of a device-dax.
///
/// Memory below an nd region is persistent. The region's attribute `persistence_domain` reports whether the caches survive a power failure too. If
/// the attribute is absent, the domain is ADR. A file that could be mapped with `MAP_SYNC` is always persistent, because the flag requires it. But
/// the domain of a device-dax is volatile if the device is volatile memory (high-bandwidth or CXL), or memory that the host must write back
/// (virtio-pmem).
///
/// # Source
/// Linux `Documentation/ABI/testing/sysfs-bus-nd`: `persistence_domain` is `cpu_cache`, `memory_controller`, or absent.
pub(super) fn dax_domain(stat: &Stat) -> Domain {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => {
            region_domain(&sysfs_dir("char", stat.st_rdev)).unwrap_or(Domain::Volatile)
        }
        _ => region_domain(&sysfs_dir("block", stat.st_dev)).unwrap_or(Domain::Adr),
    }
}

/// The domain of the nd region above a device; `None` if there is no such region, or if the host must write the memory back (virtio).
fn region_domain(device_dir: &Path) -> Option<Domain> {
    let dir = std::fs::canonicalize(device_dir).ok()?;
    if dir.iter().any(|part| part.to_string_lossy().starts_with("virtio")) {
        return None;
    }
    let region = dir.ancestors().find(|d| is_nd_region(d))?;
    let reported = std::fs::read_to_string(region.join("persistence_domain")).unwrap_or_default();
    Some(if reported.trim() == "cpu_cache" { Domain::Eadr } else { Domain::Adr })
}

fn is_nd_region(dir: &Path) -> bool {
    let subsystem = std::fs::canonicalize(dir.join("subsystem"));
    dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("region"))
        && subsystem.is_ok_and(|subsystem| subsystem.ends_with("bus/nd"))
}

fn sysfs_dir(kind: &str, device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    PathBuf::from(format!("/sys/dev/{kind}/{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a device below `parent` in a simulated sysfs. Returns its directory, and that of the region.
    fn device(root: &Path, parent: &str) -> (PathBuf, PathBuf) {
        let region = root.join("devices").join(parent).join("region0");
        let device = region.join("dax0.0/dax0.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::create_dir_all(root.join("bus/nd")).unwrap();
        std::os::unix::fs::symlink(root.join("bus/nd"), region.join("subsystem")).unwrap();
        (device, region)
    }

    #[test]
    fn nd_region_determines_domain() {
        let root = tempfile::tempdir().unwrap();
        let (device, region) = device(root.path(), "ACPI0012:00/ndbus0");
        assert_eq!(region_domain(&device), Some(Domain::Adr), "no attribute");
        for (reported, domain) in
            [("cpu_cache\n", Domain::Eadr), ("memory_controller\n", Domain::Adr), ("unknown\n", Domain::Adr)]
        {
            std::fs::write(region.join("persistence_domain"), reported).unwrap();
            assert_eq!(region_domain(&device), Some(domain), "{reported:?}");
        }
    }

    #[test]
    fn memory_without_nd_region_has_no_domain() {
        let root = tempfile::tempdir().unwrap();
        let (hmem, region) = device(root.path(), "hmem.0");
        std::fs::remove_file(region.join("subsystem")).unwrap();
        assert_eq!(region_domain(&hmem), None);
        let (virtio, _) = device(root.path(), "pci0000:00/virtio3/ndbus0");
        assert_eq!(region_domain(&virtio), None);
        assert_eq!(region_domain(&root.path().join("absent")), None);
    }
}
