//! A mount namespace of the server's own.
#![expect(
    unsafe_code,
    reason = "leaving a namespace is a system call that libraries cannot call safe in general"
)]

use super::UblkError;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread, and the threads that it starts from now on, mounts of their own. To be called first
/// thing in `main`, before other threads are there.
///
/// A server that shares its mounts with a file system on its own device holds a reference to it. If it is the last
/// one to let go, at its exit, then the kernel writes the file system back through a server that is no longer there,
/// and both hang.
///
/// # Errors
/// When the kernel refuses: without `CAP_SYS_ADMIN`, for one.
pub fn isolate_mounts() -> Result<(), UblkError> {
    // SAFETY: what makes `unshare` unsafe is CLONE_FILES, which lets descriptors mean different files in different
    // threads. This flag leaves descriptors alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(UblkError::system("making a mount namespace of its own"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(UblkError::system("making the server's mounts private"))
}
