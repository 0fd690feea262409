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

/// Takes a lock. A thread that panicked with it held had a bug, and may have left half of a change: then this panics too.
#[track_caller]
#[inline]
pub(crate) fn lock_intact<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it changed this")
}
