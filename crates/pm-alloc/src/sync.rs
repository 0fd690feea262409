//! Atomics, mutexes and thread functions from the standard library, or from loom in loom models.

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
    static LANE_HINT: Cell<Option<(u64, u32)>> = Cell::new(None);
}
#[cfg(not(loom))]
thread_local! {
    static LANE_HINT: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
}

/// Orders another thread's stores, which this thread has observed with an acquire load, before this thread's flushes of their lines.
///
/// On x86 no instruction is needed: `clwb` of a line is ordered after every visible store to it. On aarch64 an acquire load orders only loads and
/// stores. `dc cvap` is neither a load nor a store (Arm ARM, B2.3 and D7.4, "ordering and completion of data cache maintenance"): it could execute
/// before the load, and clean the line before the store reaches it. A full barrier prevents that.
#[inline]
pub(crate) fn order_observed_stores_before_flushes() {
    #[cfg(all(target_arch = "aarch64", not(loom)))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// The lane that this thread used last in the heap with this seed. `None` if the thread has [recorded](set_lane_hint) no heap, or another heap since.
#[inline]
pub(crate) fn lane_hint(seed: u64) -> Option<u32> {
    LANE_HINT.with(Cell::get).filter(|hint| hint.0 == seed).map(|hint| hint.1)
}

/// Records the lane that this thread used last, and the seed of its heap. Replaces the previous record.
pub(crate) fn set_lane_hint(seed: u64, lane: u32) {
    LANE_HINT.with(|hint| hint.set(Some((seed, lane))));
}

/// Acquires a mutex, even if a thread has panicked while holding it. Use this only for data that is consistent after every step of a change.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
