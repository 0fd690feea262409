//! What threads share: the standard library's, or loom's, which tries every order.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

/// Locks. A thread that panicked with the lock held had a bug, and may have left half of a change: then this panics too.
#[track_caller]
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it changed this")
}
