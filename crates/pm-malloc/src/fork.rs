//! The child of a process that the heap serves.
//!
//! A child expects to have all memory of its parent as it was at the `fork`, and to change it unseen. But the file is mapped as
//! shared. So the child puts a private copy of what was handed out in the place of the mapping, and its parent waits for that:
//! neither sees from then on what the other does. New blocks of the child come from glibc.
//!
//! That costs a copy for each `fork`, and nothing for `vfork` and `posix_spawn`, whose children only start another program.

use crate::say;
use crate::serving::{self, Serving};
use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, MREMAP_FIXED, MREMAP_MAYMOVE};
use pm_core::Pmem;

/// Whether a thread is between the two sides of a `fork`.
static FORKING: AtomicBool = AtomicBool::new(false);

/// A pipe: the child closes it when it has its copy, or ends.
static PIPE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// Has children made as described.
pub(crate) fn watch() {
    // SAFETY: the three functions may be called at any time, and stay where they are: libraries with handlers are not unloaded.
    let failed = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    if failed != 0 {
        say(&"children of this process will share its memory: there is no room for a handler");
    }
}

extern "C" fn before() {
    if serving::serving().is_none() {
        return;
    }
    while FORKING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: two descriptors fit.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        say(&"no pipe for a fork: the child may see what its parent writes right after it");
        ends = [-1; 2];
    }
    for (end, descriptor) in PIPE.iter().zip(ends) {
        end.store(descriptor, Ordering::Relaxed);
    }
}

extern "C" fn parent() {
    if serving::serving().is_none() {
        return;
    }
    close(&PIPE[1]);
    let reading = PIPE[0].load(Ordering::Relaxed);
    let mut byte = 0_u8;
    loop {
        // SAFETY: one byte fits. Nothing is ever written: it returns when the child has closed its end, or has none.
        let read = unsafe { libc::read(reading, (&raw mut byte).cast(), 1) };
        if read >= 0 || crate::glibc::errno() != libc::EINTR {
            break;
        }
    }
    close(&PIPE[0]);
    FORKING.store(false, Ordering::Release);
}

extern "C" fn child() {
    let Some(serving) = serving::serving() else { return };
    if !become_private(serving) {
        // It would write into its parent's memory.
        say(&"no memory for the copy that a forked child needs");
        std::process::abort();
    }
    serving::leave();
    PIPE.iter().for_each(close);
    FORKING.store(false, Ordering::Release);
}

/// Puts a private copy in the place of the mapping. Takes no lock: another thread may have held it at the `fork`.
fn become_private(serving: &Serving) -> bool {
    let region = serving.region();
    let base = region.base_ptr();
    let Ok(len) = usize::try_from(region.len_bytes()) else { return false };
    let used = serving.used();
    let (Ok(start), Ok(end)) = (usize::try_from(used.start), usize::try_from(used.end)) else { return false };
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: the kernel chooses an unused range.
    let copy = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if copy == MAP_FAILED {
        return false;
    }
    // SAFETY: `start` lies in the region, and so in the copy.
    let to = unsafe { copy.cast::<u8>().add(start) };
    // SAFETY: `start` lies in the region.
    let from = unsafe { base.add(start) };
    // SAFETY: both mappings have so many bytes. The parent's other threads may be writing there; what they were writing at the
    // moment of a `fork` is nothing that a child can rely on.
    unsafe { from.as_ptr().copy_to_nonoverlapping(to, end - start) };
    // SAFETY: the copy moves to where the mapping was, which has the same length. Whatever points there finds the same bytes.
    let moved = unsafe { libc::mremap(copy, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, base.as_ptr()) };
    moved != MAP_FAILED
}

fn close(descriptor: &AtomicI32) {
    let descriptor = descriptor.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: it is this module's own, and nobody uses it any more.
        unsafe { libc::close(descriptor) };
    }
}
