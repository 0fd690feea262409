//! `pmfs umount`

use crate::pool::at;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::Path;
use std::process::Command;

/// Unmounts a directory; `detaches` it at once even if files in it are open.
pub(crate) fn umount(directory: &Path, detaches: bool) -> Result<()> {
    // The system call needs root; fusermount3 is for other users.
    if rustix::process::getuid().is_root() {
        let flags = if detaches { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return match rustix::mount::unmount(directory, flags) {
            Err(Errno::INVAL) => Err(miette!("{}: nothing is mounted there", directory.display())),
            unmounted => unmounted.into_diagnostic().wrap_err_with(|| at(directory)),
        };
    }
    let how = if detaches { "-uz" } else { "-u" };
    let status = Command::new("fusermount3").arg(how).arg(directory).status();
    let status = status.into_diagnostic().wrap_err("running fusermount3, of the package fuse3")?;
    if status.success() { Ok(()) } else { Err(miette!("fusermount3 ended with {status}")) }
}
