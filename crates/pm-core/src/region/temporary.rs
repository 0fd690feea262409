//! Names for files that are being made where the file system has no nameless ones, and what killed makers left of them.

use super::OpenError;
use super::lock::lock;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const INFIX: &[u8] = b".creating-";

/// A name that no other maker has: pids repeat, in containers and after restarts.
pub(super) fn new_name(name: &OsStr) -> OsString {
    let number = u64::from_le_bytes(crate::Uuid::random().bytes()[..8].try_into().expect("8 of 16 bytes"));
    let mut temporary = name.to_os_string();
    temporary.push(OsStr::from_bytes(INFIX));
    temporary.push(format!("{}-{number:016x}", std::process::id()));
    temporary
}

/// Removes the files that were being made for `name` by processes that do not live any more: those that are not locked.
pub(super) fn remove_abandoned(dir: &OwnedFd, path: &Path, name: &OsStr) -> Result<(), OpenError> {
    let failed = |operation| OpenError::from_errno(path, operation);
    for entry in rustix::fs::Dir::read_from(dir).map_err(failed("reading the directory"))? {
        let entry = entry.map_err(failed("reading the directory"))?;
        let temporary = entry.file_name();
        if !is_temporary(temporary.to_bytes(), name) {
            continue;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(dir, temporary, flags, Mode::empty()) {
            Ok(file) => file,
            // Gone, or another user's.
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::LOOP) => continue,
            Err(errno) => return Err(failed("open of an abandoned file")(errno)),
        };
        match lock(&file, path, true) {
            Ok(()) => {}
            Err(OpenError::Busy { .. }) => continue,
            Err(error) => return Err(error),
        }
        match rustix::fs::unlinkat(dir, temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("removing an abandoned file")(errno)),
        }
    }
    Ok(())
}

/// Whether [`new_name`] makes such names for `name`. The 16 digits are required: a pool's own name may end in a number.
fn is_temporary(temporary: &[u8], name: &OsStr) -> bool {
    let numbers = temporary.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(INFIX));
    let Some(numbers) = numbers else { return false };
    let Some(at) = numbers.iter().position(|&byte| byte == b'-') else { return false };
    let (pid, number) = (&numbers[..at], &numbers[at + 1..]);
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    !pid.is_empty() && pid.iter().all(u8::is_ascii_digit) && number.len() == 16 && number.iter().all(is_hex)
}
