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

/// Takes a lock. A thread that panicked with it held had a bug, and may have left half of a change: then this panics too.
#[track_caller]
#[inline]
pub(crate) fn lock_intact<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it changed this")
}
