//! A mount namespace of the server's own.
#![expect(
    unsafe_code,
    reason = "leaving a namespace is a system call that libraries cannot call safe in general"
)]

use super::{UblkError, usage};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process has mounts of its own, so that to unmount one takes it from nobody else.
static ISOLATED: AtomicBool = AtomicBool::new(false);

/// Gives the calling thread, and the threads that it starts from now on, mounts of their own. To be called
/// first thing in `main`, before other threads are there.
///
/// A server that shares its mounts with a file system on its own device holds a reference to it. If it is the
/// last one to let go, at its exit, then the kernel writes the file system back through a server that is no
/// longer there, and both hang.
///
/// The mounts of its own are a copy, and what was mounted on the device of a dead server is in it: when a
/// device is taken over, [`serve`](super::serve()) lets go of those. File systems on top of a device mapping
/// on the device it cannot tell; there the order matters, server first and mounts later.
///
/// # Errors
/// When the kernel refuses: without `CAP_SYS_ADMIN`, for one.
pub fn isolate_mounts() -> Result<(), UblkError> {
    // SAFETY: what makes `unshare` unsafe is CLONE_FILES, which lets descriptors mean different files in
    // different threads. This flag leaves descriptors alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(UblkError::system("making a mount namespace of its own"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(UblkError::system("making the server's mounts private"))?;
    ISOLATED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Lets go of what is mounted on `device` in this process's own mounts; where it shares them, does nothing.
/// The device must be served, for the last one to let go of a file system writes to it.
pub(super) fn let_go(device: &Path) -> Result<(), UblkError> {
    if !ISOLATED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mounts = usage::own_mounts(device).map_err(UblkError::system("reading the server's mounts"))?;
    // The latest first, for it may lie over an earlier one.
    for mount in mounts.iter().rev() {
        // One that cannot be reached is better kept than the device left without a server.
        if let Err(error) = unmount(mount, UnmountFlags::DETACH) {
            tracing::warn!(mount = %mount.display(), %error, "cannot let go of a mount of the device");
        }
    }
    Ok(())
}
