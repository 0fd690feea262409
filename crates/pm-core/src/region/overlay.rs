//! Overlay file systems. Whether synced data survives a power failure depends on the file system that holds the upper layer, and on mount options.

use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs::read_to_string;
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The magic number of overlays in `statfs` (`linux/magic.h`).
pub(super) const OVERLAYFS_MAGIC: u64 = 0x794c_7630;

/// The mount options of an overlay that concern durability.
#[derive(Debug, PartialEq, Eq)]
struct Overlay {
    /// Mounted with `volatile`, which disables all syncing.
    is_volatile: bool,
    /// The directory that holds changes.
    upper: Option<PathBuf>,
}

/// The maximum number of overlays in a stack (Linux `FILESYSTEM_MAX_STACK_DEPTH`).
const MAX_STACKED: usize = 2;

/// Whether a power failure loses data synced to an overlay, because the overlay was mounted `volatile` or its upper layer is in memory. An upper
/// layer that this process cannot see, as in most containers, is assumed to be on a disk, so that fences sync. The same is assumed if the upper layer
/// has a relative path, which only the mounting process can resolve; if there are more overlays than the kernel allows in a stack; or if chroot(2)
/// into a directory that is not a mount point hides the mount.
///
/// # Source
/// Linux `Documentation/filesystems/overlayfs.rst`, "Volatile mount"; proc(5), `fdinfo` and `mountinfo`.
pub(super) fn is_volatile(file: impl AsFd, is_memory: impl Fn(u64) -> bool) -> Result<bool> {
    let mut layer = file.as_fd().try_clone_to_owned()?;
    for _ in 0..MAX_STACKED {
        let fdinfo = read_to_string(format!("/proc/self/fdinfo/{}", layer.as_raw_fd()))?;
        let mount = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let Some(mount) = mount else { return Ok(false) };
        let overlay = find(&read_to_string("/proc/self/mountinfo")?, mount.trim());
        let Some(overlay) = overlay else { return Ok(false) };
        if overlay.is_volatile {
            return Ok(true);
        }
        let Some(upper) = overlay.upper.filter(|upper| upper.is_absolute()) else { return Ok(false) };
        let Ok(upper) = rustix::fs::open(&upper, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
            return Ok(false);
        };
        let magic = rustix::fs::fstatfs(&upper)?.f_type as u64 & 0xffff_ffff;
        if magic != OVERLAYFS_MAGIC {
            return Ok(is_memory(magic));
        }
        layer = upper;
    }
    Ok(false)
}

/// The options of the overlay with this mount number. (The crate procfs does not decode escapes in options, and fails on lines with an empty source.)
fn find(mountinfo: &str, mount: &str) -> Option<Overlay> {
    let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let (_, file_system) = line.split_once(" - ")?;
    let mut words = file_system.split(' ');
    let (kind, options) = (words.next()?, words.nth(1)?);
    let options = || options.split(',');
    (kind == "overlay").then(|| Overlay {
        // Newer kernels show the second form.
        is_volatile: options().any(|option| matches!(option, "volatile" | "fsync=volatile")),
        upper: options().find_map(|option| option.strip_prefix("upperdir=")).map(unescaped),
    })
}

/// Decodes a path in which some bytes are written as a backslash and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let octal = others.get(..3).and_then(|digits| str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &others[3..];
            }
            _ => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:28 / /mnt rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u\\040p,workdir=/w,volatile
32 22 0:29 / /mnt2 rw shared:2 master:1 - overlay none rw,lowerdir=/l,upperdir=/dev/shm/x,workdir=/w
33 22 0:30 / /mnt3 ro - overlay none ro,lowerdir=/volatile:/l
34 22 0:31 / /mnt4 rw - overlay none rw,lowerdir=/l,upperdir=/u,uuid=on,fsync=volatile
";

    #[test]
    fn mount_options_are_read_by_mount_number() {
        let overlay =
            |is_volatile, upper: Option<&str>| Overlay { is_volatile, upper: upper.map(PathBuf::from) };
        assert_eq!(find(MOUNTINFO, "31"), Some(overlay(true, Some("/u p"))));
        assert_eq!(find(MOUNTINFO, "32"), Some(overlay(false, Some("/dev/shm/x"))));
        assert_eq!(find(MOUNTINFO, "33"), Some(overlay(false, None)));
        assert_eq!(find(MOUNTINFO, "34"), Some(overlay(true, Some("/u"))));
        assert_eq!(find(MOUNTINFO, "22"), None, "no overlay");
        assert_eq!(find(MOUNTINFO, "3"), None);
    }

    #[test]
    fn escaped_paths_are_decoded() {
        for (escaped, path) in
            [("/a\\040b\\134", "/a b\\"), ("/a\\04", "/a\\04"), ("", ""), ("\\999", "\\999")]
        {
            assert_eq!(unescaped(escaped), PathBuf::from(path));
        }
    }
}
