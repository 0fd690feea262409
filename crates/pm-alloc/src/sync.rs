//! Atomics, locks and threads: the standard library's, or loom's where that tries every schedule.

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

use core::ops::{Deref, DerefMut};
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

/// Orders the stores of another thread that this one has seen, by a load that acquires, before this thread's flushes of their lines.
///
/// On x86 that order is there: `clwb` of a line comes after every store to it that is visible. On aarch64 an acquiring load orders loads
/// and stores, and `dc cvap` is neither (Arm ARM, B2.3 and D7.4, "ordering and completion of data cache maintenance"): it could be
/// executed before the load, and so clean the line without the store. A full barrier orders it.
#[inline]
pub(crate) fn before_flushing_others_stores() {
    #[cfg(all(target_arch = "aarch64", not(loom)))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// What this thread [remembered](remember) last, if that was about `whose`.
#[inline]
pub(crate) fn remembered(whose: u64) -> Option<u32> {
    HINT.with(Cell::get).filter(|hint| hint.0 == whose).map(|hint| hint.1)
}

/// Has this thread remember a number.
pub(crate) fn remember(whose: u64, number: u32) {
    HINT.with(|hint| hint.set(Some((whose, number))));
}

/// Takes a lock. One that a panicking thread held is taken all the same: what it guards here is whole after each step.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mutex that a thread breaks which panics while it holds it, unless the thread had only looked at what it guards. A poisoned mutex of the
/// standard library can be repaired only after another thread may have found it so.
#[derive(Debug)]
pub(crate) struct IntactMutex<T> {
    inner: Mutex<T>,
    /// Not loom's: no schedule depends on it.
    is_broken: std::sync::atomic::AtomicBool,
}

/// The mutex, locked.
#[derive(Debug)]
pub(crate) struct IntactGuard<'m, T> {
    inner: MutexGuard<'m, T>,
    is_broken: &'m std::sync::atomic::AtomicBool,
    /// A panic of this thread, now or later, leaves what is guarded whole.
    is_kept: bool,
}

impl<T> IntactMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), is_broken: std::sync::atomic::AtomicBool::new(false) }
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// When it is broken: what it guards may be half changed.
    #[track_caller]
    pub(crate) fn lock(&self) -> IntactGuard<'_, T> {
        let inner = lock(&self.inner);
        assert!(!self.is_broken.load(Ordering::Relaxed), "a thread panicked while it changed this");
        IntactGuard { inner, is_broken: &self.is_broken, is_kept: std::thread::panicking() }
    }

    /// Whether it is neither held nor broken.
    pub(crate) fn is_intact(&self) -> bool {
        let is_held = matches!(self.inner.try_lock(), Err(std::sync::TryLockError::WouldBlock));
        !is_held && !self.is_broken.load(Ordering::Relaxed)
    }
}

impl<T> IntactGuard<'_, T> {
    /// This thread only looks.
    pub(crate) const fn keep_intact(&mut self) {
        self.is_kept = true;
    }
}

impl<T> Deref for IntactGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for IntactGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for IntactGuard<'_, T> {
    fn drop(&mut self) {
        if !self.is_kept && std::thread::panicking() {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }
}
