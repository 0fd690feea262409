//! Who uses a device.

use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What keeps a device from being removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Where it, or a partition of it, is mounted, as far as this process can see.
    pub mounts: Vec<PathBuf>,
    /// Somebody holds it: a mount somewhere, a device mapping, swap, or a program that has it open
    /// exclusively.
    pub held: bool,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mounts.is_empty() {
            return write!(
                f,
                "held open exclusively, by a mount elsewhere, a device mapping, swap or a program"
            );
        }
        write!(f, "mounted at ")?;
        for (index, mount) in self.mounts.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, mount.display())?;
        }
        Ok(())
    }
}

/// An exclusive hold on a block device: while it lives, nobody can mount it. `None` where there is no device
/// to hold.
#[derive(Debug)]
pub(super) struct Claim {
    #[expect(dead_code, reason = "held for the exclusion alone")]
    file: Option<File>,
}

/// Whether `/dev/ublkbN` is mounted or held, and how. `None` if it is free, or not there.
///
/// Somebody who merely has it open to read or write is not seen: the kernel does not tell.
///
/// # Errors
/// When the device cannot be opened for another reason than being held.
pub fn in_use(device_id: u32) -> io::Result<Option<Usage>> {
    Ok(claim(device_id)?.err())
}

/// Holds the device exclusively, or says who does.
pub(super) fn claim(device_id: u32) -> io::Result<Result<Claim, Usage>> {
    let path = PathBuf::from(format!("/dev/ublkb{device_id}"));
    match path.metadata() {
        Ok(found) if found.file_type().is_block_device() => {}
        Ok(_) => return Ok(Ok(Claim { file: None })),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Ok(Claim { file: None })),
        Err(e) => return Err(e),
    }
    match File::options().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(&path) {
        Ok(file) => Ok(Ok(Claim { file: Some(file) })),
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::BUSY) => Ok(Err(Usage { mounts: mounts(&path)?, held: true })),
            // The node is there, and the disk behind it is not.
            Some(Errno::NXIO | Errno::NODEV) => Ok(Ok(Claim { file: None })),
            _ => Err(e),
        },
    }
}

/// The mounts of the calling thread, which are the process's unless it has left them.
const OWN_TABLE: &str = "/proc/thread-self/mountinfo";

/// Where a device is mounted, by this process's mounts and those of the system's first process.
fn mounts(device: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = own_mounts(device)?;
    // A server with mounts of its own sees none of the system's in its own table.
    match read_table("/proc/1/mountinfo") {
        Ok(table) => found.extend(mount_points(&table, &number_of(device)?, &device.to_string_lossy())),
        // Only for a better message: the kernel has already said that the device is held.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
        Err(e) => return Err(e),
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Where a device is mounted by this process's mounts, in the order of mounting.
pub(super) fn own_mounts(device: &Path) -> io::Result<Vec<PathBuf>> {
    let table = read_table(OWN_TABLE)?;
    Ok(mount_points(&table, &number_of(device)?, &device.to_string_lossy()))
}

/// A mount table. Names in it may be of any bytes; those that are no UTF-8 are other devices' for all that is known here.
fn read_table(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// A block device's number, as the mount tables have it.
fn number_of(device: &Path) -> io::Result<String> {
    let number = device.metadata()?.rdev();
    Ok(format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
}

/// The mount points of the device with this `number`, or whose source is `device` or a partition of it.
///
/// # Source
/// proc_pid_mountinfo(5): fields 3 (device number), 5 (mount point), and the second behind the separator
/// (source).
fn mount_points(table: &str, number: &str, device: &str) -> Vec<PathBuf> {
    let matches = |line: &&str| {
        let mut fields = line.split(' ');
        let by_number = fields.nth(2) == Some(number);
        let source = fields.skip_while(|field| *field != "-").nth(2);
        by_number || source.is_some_and(|source| is_device_or_partition(source, device))
    };
    let mount_point = |line: &str| line.split(' ').nth(4).map(unescape);
    table.lines().filter(matches).filter_map(mount_point).collect()
}

/// "/dev/ublkb1" or "/dev/ublkb1p2", but not "/dev/ublkb10".
fn is_device_or_partition(source: &str, device: &str) -> bool {
    source.strip_prefix(device).is_some_and(|rest| {
        let partition = rest.strip_prefix('p');
        rest.is_empty() || partition.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &str) -> PathBuf {
    let mut path = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        path.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            path.push(char::from(code));
            rest = &rest[at + 4..];
        } else {
            path.push('\\');
            rest = &rest[at + 1..];
        }
    }
    path.push_str(rest);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
60 21 259:0 / /mnt/a\\040b rw shared:2 - xfs /dev/ublkb1 rw
61 21 259:1 / /mnt/part rw - ext4 /dev/ublkb1p2 rw
62 21 259:9 / /mnt/other rw - ext4 /dev/ublkb10 rw
63 21 0:40 / /mnt/btrfs rw - btrfs /dev/ublkb1 rw
garbage
64 21 259:0
";

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let found = mount_points(TABLE, "259:0", "/dev/ublkb1");
        assert_eq!(found, ["/mnt/a b", "/mnt/part", "/mnt/btrfs"].map(PathBuf::from));
        assert_eq!(mount_points(TABLE, "259:9", "/dev/ublkb10"), [PathBuf::from("/mnt/other")]);
        assert!(mount_points(TABLE, "7:7", "/dev/ublkb2").is_empty());
    }

    #[test]
    fn escapes_are_undone_and_odd_ones_left() {
        for (field, path) in
            [("/a\\040b\\134c", "/a b\\c"), ("/x\\", "/x\\"), ("/x\\9zz", "/x\\9zz"), ("/é\\04", "/é\\04")]
        {
            assert_eq!(unescape(field), PathBuf::from(path));
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_not_in_use() {
        assert_eq!(in_use(999_999).unwrap(), None);
    }

    #[test]
    fn usage_tells_where() {
        let usage = Usage { mounts: vec!["/a".into(), "/b".into()], held: true };
        assert_eq!(usage.to_string(), "mounted at /a, /b");
        assert!(Usage { mounts: vec![], held: true }.to_string().starts_with("held open exclusively"));
    }
}
