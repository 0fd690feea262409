//! Atomics, mutexes and threads: the standard library's, or loom's in its models.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};

use crate::quiet_lock::{Broken, Guard};
use std::cell::Cell;
use std::sync::PoisonError;

#[cfg(loom)]
loom::thread_local! {
    static HINT: Cell<Option<(u64, u32)>> = Cell::new(None);
}
#[cfg(not(loom))]
thread_local! {
    static HINT: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
}

/// Orders another thread's stores, which this thread has observed by an acquiring load, before this thread's flushes of their lines.
///
/// On x86 they are ordered: `clwb` of a line follows every visible store to it. On aarch64 an acquiring load orders loads
/// and stores, and `dc cvap` is neither (Arm ARM, B2.3 and D7.4, "ordering and completion of data cache maintenance"): it could
/// execute before the load, and clean the line without the store. A full barrier orders it.
#[inline]
pub(crate) fn before_flushing_others_stores() {
    #[cfg(all(target_arch = "aarch64", not(loom)))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// The number that this thread [remembered](remember) last, if it was for `whose`.
#[inline]
pub(crate) fn remembered(whose: u64) -> Option<u32> {
    HINT.with(Cell::get).filter(|hint| hint.0 == whose).map(|hint| hint.1)
}

/// Remembers a number for this thread.
pub(crate) fn remember(whose: u64, number: u32) {
    HINT.with(|hint| hint.set(Some((whose, number))));
}

/// Acquires a lock, even if a thread panicked while it held it: what these locks guard is consistent after each step.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mutex that breaks when a thread panics while it holds it, as a [`QuietLock`](crate::quiet_lock::QuietLock) does.
#[derive(Debug)]
pub(crate) struct IntactMutex<T> {
    inner: Mutex<T>,
    broken: Broken,
}

/// An [`IntactMutex`] that this thread holds.
pub(crate) type IntactGuard<'m, T> = Guard<'m, MutexGuard<'m, T>>;

impl<T> IntactMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), broken: Broken::new() }
    }

    /// Acquires the lock.
    ///
    /// # Panics
    /// When it is broken.
    #[track_caller]
    pub(crate) fn lock(&self) -> IntactGuard<'_, T> {
        let inner = lock(&self.inner);
        self.broken.assert_intact();
        self.broken.guard(inner)
    }

    /// Whether it is neither held nor broken.
    pub(crate) fn is_intact(&self) -> bool {
        let is_held = matches!(self.inner.try_lock(), Err(std::sync::TryLockError::WouldBlock));
        !is_held && !self.broken.is_set()
    }
}
