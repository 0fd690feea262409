//! One handle at a time writes the pool of a region, and those that read beside it know what it is changing.

use crate::pool::Shared;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The lock of a region in ordinary memory, for an implementation of [`Pmem`](crate::Pmem) to keep beside its bytes. A file's
/// lock keeps out other regions of the file; this one keeps out other handles of the region, which `&P` and `Arc<P>` allow. A clone
/// is the same lock.
///
/// ```
/// let lock = pm_core::WriterLock::default();
/// let guard = lock.try_lock().expect("nothing else writes");
/// assert!(lock.clone().try_lock().is_none());
/// drop(guard);
/// assert!(lock.try_lock().is_some());
/// ```
#[derive(Clone, Debug, Default)]
pub struct WriterLock(Arc<Lock>);

#[derive(Debug, Default)]
struct Lock {
    is_locked: AtomicBool,
    /// One for all handles, so that those that read need not find out who writes.
    pool: Arc<Shared>,
}

impl WriterLock {
    /// Takes the lock, if it is free.
    #[must_use]
    pub fn try_lock(&self) -> Option<WriterGuard> {
        let was_locked = self.0.is_locked.swap(true, Ordering::Acquire);
        (!was_locked).then(|| WriterGuard(Some(Arc::clone(&self.0))))
    }

    /// What the handle that writes is changing, or was when it failed.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.0.pool)
    }
}

/// The right to write the pool of a region. Given up when dropped.
#[derive(Debug)]
#[must_use = "another handle can write as soon as this is dropped"]
pub struct WriterGuard(Option<Arc<Lock>>);

impl WriterGuard {
    /// Of a region that keeps no lock.
    pub(crate) const fn unlocked() -> Self {
        Self(None)
    }

    /// What handles that read know of this one's changes. `None` of a region that keeps no lock.
    pub(crate) fn shared(&self) -> Option<Arc<Shared>> {
        self.0.as_ref().map(|lock| Arc::clone(&lock.pool))
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        if let Some(lock) = &self.0 {
            lock.is_locked.store(false, Ordering::Release);
        }
    }
}
