//! Files under regions: finding, opening, names, lengths and holes.

use super::OpenError;
use core::ops::Range;
use rustix::fs::{Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Stats the file at a path through an `O_PATH` descriptor. The file itself is not opened, because opening affects a tape or a watchdog device.
pub(super) fn stat_path(path: &Path) -> Result<(OwnedFd, Stat), OpenError> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(OpenError::from_errno(path, "open"))?;
    let stat = rustix::fs::fstat(&found).map_err(OpenError::from_errno(path, "stat"))?;
    Ok((found, stat))
}

/// Opens the file of a descriptor again, even if its path now denotes another file. The new open file description can have a lock of its own.
pub(super) fn open(found: &OwnedFd, path: &Path, writable: bool) -> Result<OwnedFd, OpenError> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::open(link, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map_err(|errno| {
        match errno {
            Errno::ACCESS | Errno::PERM => OpenError::Permission {
                path: path.to_path_buf(),
                wanted: if writable { "reading and writing" } else { "reading" },
            },
            // The file exists, so this error shows that /proc is not mounted.
            Errno::NOENT => {
                OpenError::Io { path: path.to_path_buf(), operation: "open through /proc", errno }
            }
            errno => OpenError::from_errno(path, "open")(errno),
        }
    })
}

/// Whether the file has no name, and so is deleted when it is closed. The caller holds the file's lock, so another process that creates a file
/// of the same name does not remove this one.
pub(super) fn has_no_name(file: &OwnedFd, path: &Path) -> Result<bool, OpenError> {
    let failed = |operation| OpenError::from_errno(path, operation);
    if rustix::fs::fstat(file).map_err(failed("stat"))?.st_nlink != 0 {
        return Ok(false);
    }
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    Ok(is_deleted_link(link.map_err(failed("readlink in /proc"))?.as_bytes()))
}

/// Whether this link in `/proc/self/fd` denotes a file without a name. A link count of zero does not prove it: some file systems in user space do
/// not count links.
///
/// # Source
/// proc(5), `/proc/pid/fd`.
fn is_deleted_link(link: &[u8]) -> bool {
    link.ends_with(b" (deleted)")
}

/// Refuses a length that is zero or not a multiple of `multiple_bytes`.
pub(super) const fn check_size(len_bytes: u64, multiple_bytes: u64) -> Result<(), OpenError> {
    if len_bytes == 0 {
        return Err(OpenError::ZeroSize);
    }
    if !len_bytes.is_multiple_of(multiple_bytes) {
        return Err(OpenError::SizeNotMultiple { len_bytes, multiple_bytes });
    }
    Ok(())
}

/// Sets a file's length.
pub(super) fn set_length(file: impl AsFd, path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    check_length(path, len_bytes)?;
    rustix::fs::ftruncate(file, len_bytes).map_err(|errno| match errno {
        Errno::FBIG => OpenError::NoSpace { path: path.to_path_buf(), len_bytes },
        errno => OpenError::from_errno(path, "ftruncate")(errno),
    })
}

/// Refuses a length that no file can have; the system would only report an invalid argument.
pub(super) fn check_length(path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    let no_space = |_| OpenError::NoSpace { path: path.to_path_buf(), len_bytes };
    i64::try_from(len_bytes).map(drop).map_err(no_space)
}

/// Refuses a length above this process's limit of file sizes, because exceeding the limit raises SIGXFSZ.
pub(super) fn check_limit(path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if len_bytes > limit => {
            Err(OpenError::from_errno(path, "setting a length above RLIMIT_FSIZE")(Errno::FBIG))
        }
        _ => Ok(()),
    }
}

/// The first data range in `rest`. `rest` must not be empty. If the file system or device cannot report holes, all of `rest` is data.
pub(super) fn next_data(file: impl AsFd, rest: Range<u64>) -> Option<Range<u64>> {
    let start = match rustix::fs::seek(&file, SeekFrom::Data(rest.start)) {
        Ok(start) if start >= rest.start => start,
        Err(Errno::NXIO) => return None,
        // A character device, such as a device-dax, returns a position that does not depend on the argument.
        Ok(_) | Err(_) => return Some(rest),
    };
    // Such a device returns zero here too, as if offset zero were both data and a hole.
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(start)).ok().filter(|&hole| hole > start);
    let end = hole.unwrap_or(rest.end).min(rest.end);
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_nameless_files_have_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let is_nameless = |file: &OwnedFd| has_no_name(file, &path).unwrap();
        let named: OwnedFd = std::fs::File::create(&path).unwrap().into();
        assert!(!is_nameless(&named));
        std::fs::remove_file(&path).unwrap();
        assert!(is_nameless(&named));
        let flags = OFlags::RDWR | OFlags::TMPFILE;
        assert!(is_nameless(&rustix::fs::open(dir.path(), flags, Mode::RUSR | Mode::WUSR).unwrap()));
        // Without a link count, only /proc shows that the file has no name.
        assert!(is_deleted_link(b"/mnt/x.pm (deleted)") && !is_deleted_link(b"/mnt/x.pm"));
    }

    #[test]
    fn device_without_hole_report_is_all_data() {
        let device = std::fs::File::open("/dev/zero").unwrap();
        for rest in [4096..8192, 0..8192] {
            assert_eq!(next_data(&device, rest.clone()), Some(rest));
        }
    }
}
