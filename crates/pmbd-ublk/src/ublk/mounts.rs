//! Mounts: a namespace for the server, and the mount points of a device.
#![expect(unsafe_code, reason = "unshare is unsafe for flags other than the one used here")]

use super::error::UblkError;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process has a mount namespace of its own, so that unmounting affects no other process.
static ISOLATED: AtomicBool = AtomicBool::new(false);

/// Gives the calling thread, and the threads that it starts from now on, a mount namespace of their own. Must be called first in `main`,
/// before there are other threads.
///
/// A server that shares its mounts with a file system on its own device holds a reference to it. If it is the last to release it, at its
/// exit, the kernel writes the file system back through a server that has ended, and both hang.
///
/// The namespace is a copy, and includes the mounts on the device of a dead server: [`serve`](super::serve()) releases them when it takes
/// the device over. It does not find file systems on a device mapping on the device; there the order matters, server first and mounts later.
///
/// # Errors
/// When the kernel refuses: without `CAP_SYS_ADMIN`, for one.
pub fn isolate_mounts() -> Result<(), UblkError> {
    // SAFETY: `unshare` is unsafe because of CLONE_FILES, which makes descriptors differ between threads. This flag does not.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(UblkError::system("making a mount namespace of its own"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(UblkError::system("making the server's mounts private"))?;
    ISOLATED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Unmounts `device` in this process's own namespace; does nothing if it shares one. The device must be served, as releasing a file system
/// last writes to it.
pub(super) fn release(device: &Path) -> Result<(), UblkError> {
    if !ISOLATED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mounts = mounted_at(device, OWN_TABLE).map_err(UblkError::system("reading the server's mounts"))?;
    // The latest first, as it may lie over an earlier one.
    for mount in mounts.iter().rev() {
        // Better an unreachable mount than a device without a server.
        if let Err(error) = unmount(mount, UnmountFlags::DETACH) {
            tracing::warn!(mount = %mount.display(), %error, "cannot release a mount of the device");
        }
    }
    Ok(())
}

/// The mounts of the calling thread: those of the process, unless the thread has left them.
const OWN_TABLE: &str = "/proc/thread-self/mountinfo";

/// The mount points of a device, in this process's namespace and that of the system's first process.
pub(super) fn mounts(device: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = mounted_at(device, OWN_TABLE)?;
    // A server with a namespace of its own sees none of the system's mounts in its own table.
    match mounted_at(device, "/proc/1/mountinfo") {
        Ok(more) => found.extend(more),
        // They only improve the message: the kernel has already reported that the device is held.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
        Err(e) => return Err(e),
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The mount points of a device in a mount table, in the order of mounting.
fn mounted_at(device: &Path, table: &str) -> io::Result<Vec<PathBuf>> {
    // Names of other devices may be any bytes.
    let table = String::from_utf8_lossy(&std::fs::read(table)?).into_owned();
    let number = device.metadata()?.rdev();
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    Ok(mount_points(&table, &number, &device.to_string_lossy()))
}

/// The mount points of the device with this `number`, or whose source is `device` or a partition of it.
///
/// By hand: procfs 0.18 does not undo escapes in mount points, and fails on a table with a name that is not UTF-8.
///
/// # Source
/// proc_pid_mountinfo(5): fields 3 (device number), 5 (mount point), and the second after the separator (source).
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

/// Decodes the octal escapes of blanks and backslashes.
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
    fn escapes_are_decoded_and_malformed_ones_kept() {
        for (field, path) in
            [("/a\\040b\\134c", "/a b\\c"), ("/x\\", "/x\\"), ("/x\\9zz", "/x\\9zz"), ("/é\\04", "/é\\04")]
        {
            assert_eq!(unescape(field), PathBuf::from(path));
        }
    }
}
