//! One handle at a time writes the pool of a region.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The lock of a region in ordinary memory, for an implementation of [`Pmem`](crate::Pmem) to keep beside its bytes. A file's
/// lock keeps out other regions of the file; this one keeps out other handles of the region, which `&P` and `Arc<P>` allow.
///
/// ```
/// let lock = pm_core::WriterLock::default();
/// let guard = lock.try_lock().expect("nothing else writes");
/// assert!(lock.try_lock().is_none());
/// drop(guard);
/// assert!(lock.try_lock().is_some());
/// ```
#[derive(Debug, Default)]
pub struct WriterLock(Arc<AtomicBool>);

impl WriterLock {
    /// Takes the lock, if it is free.
    #[must_use]
    pub fn try_lock(&self) -> Option<WriterGuard> {
        let was_locked = self.0.swap(true, Ordering::Acquire);
        (!was_locked).then(|| WriterGuard(Some(Arc::clone(&self.0))))
    }
}

/// The right to write the pool of a region. Given up when dropped.
#[derive(Debug)]
#[must_use = "another handle can write as soon as this is dropped"]
pub struct WriterGuard(Option<Arc<AtomicBool>>);

impl WriterGuard {
    /// Of a region that keeps no lock.
    pub(crate) const fn unlocked() -> Self {
        Self(None)
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        if let Some(is_locked) = &self.0 {
            is_locked.store(false, Ordering::Release);
        }
    }
}
