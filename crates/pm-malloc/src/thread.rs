//! The state of the calling thread: in a call that takes locks of the heap, or in a `fork`.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

/// The thread between the two sides of a `fork`; zero if there is none.
static FORKING: AtomicU64 = AtomicU64::new(0);

/// Blocks freed by a thread that could not take the locks of the heap.
static FREED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread is allocating or freeing, and so may hold locks of the heap. Atomic for its signal handlers.
    static IN_HEAP: AtomicBool = const { AtomicBool::new(false) };
}

/// Whether the calling thread is the one between the two sides of a `fork`.
pub(crate) fn is_forking() -> bool {
    FORKING.load(Ordering::Relaxed) == this_thread()
}

/// Records that the calling thread is between the two sides of a `fork`, or that no thread is.
pub(crate) fn set_forking(is_forking: bool) {
    FORKING.store(if is_forking { this_thread() } else { 0 }, Ordering::Relaxed);
}

/// Runs a call that takes locks of the heap. `None`, without running it, if a signal handler interrupted such a call of this thread: the thread
/// would deadlock.
#[inline]
pub(crate) fn with_locks<R>(run: impl FnOnce() -> R) -> Option<R> {
    IN_HEAP.with(|in_heap| {
        if in_heap.load(Ordering::Relaxed) {
            return None;
        }
        in_heap.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let result = run();
        compiler_fence(Ordering::SeqCst);
        in_heap.store(false, Ordering::Relaxed);
        Some(result)
    })
}

/// Whether the calling thread, which may be in a signal handler, may hold locks of the heap.
pub(crate) fn may_hold_locks() -> bool {
    IN_HEAP.with(|in_heap| in_heap.load(Ordering::Relaxed))
}

/// Frees a block once the fork is over, or with the next one.
pub(crate) fn free_later(offset: u64) {
    FREED.lock().unwrap_or_else(PoisonError::into_inner).push(offset);
}

/// Takes the blocks that wait to be freed.
pub(crate) fn take_freed() -> Vec<u64> {
    core::mem::take(&mut *FREED.lock().unwrap_or_else(PoisonError::into_inner))
}

fn this_thread() -> u64 {
    // SAFETY: may be called at any time. It is an address, and so never zero.
    unsafe { libc::pthread_self() }
}
