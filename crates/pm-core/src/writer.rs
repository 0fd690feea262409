//! The lock of the one handle that may write a region's pool, and the state of the pool that all handles share.

use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};
use once_cell::race::OnceBox;
use std::sync::Arc;

/// The writer lock of a region, in ordinary memory. An implementation of [`Pmem`](crate::Pmem) keeps one for its region. The lock of a file excludes
/// other regions of the file; the writer lock excludes other handles of the region, which `&P` and `Arc<P>` allow. A clone shares the lock.
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
    /// State that all handles share; the pool chooses its type. Initialisation never blocks: otherwise a child of fork(2) could wait forever for a
    /// thread that exists only in its parent.
    shared: OnceBox<Arc<dyn Any + Send + Sync>>,
}

/// True, because the shared state is `Sync`, and a panic leaves it usable.
impl core::panic::RefUnwindSafe for Lock {}

impl Lock {
    fn shared<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let shared = self.shared.get_or_init(|| Box::new(Arc::new(T::default())));
        Arc::clone(shared).downcast().expect("all handles share one type")
    }
}

impl WriterLock {
    /// Acquires the lock. Returns `None` if it is held.
    #[must_use]
    pub fn try_lock(&self) -> Option<WriterGuard> {
        let was_locked = self.0.is_locked.swap(true, Ordering::Acquire);
        (!was_locked).then(|| WriterGuard(Some(Arc::clone(&self.0))))
    }

    /// The state that all handles of the region share.
    pub(crate) fn shared<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        self.0.shared()
    }
}

/// The guard of a region's writer lock: the right to write the pool. Dropping it releases the lock, if the region has one.
#[derive(Debug)]
#[must_use = "another handle can write as soon as this is dropped"]
pub struct WriterGuard(Option<Arc<Lock>>);

impl WriterGuard {
    /// The guard for a region that has no lock.
    pub(crate) const fn without_lock() -> Self {
        Self(None)
    }

    /// The state that all handles of the region share. `None` for a region that has no lock.
    pub(crate) fn shared<T: Any + Default + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.as_ref().map(|lock| lock.shared())
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        if let Some(lock) = &self.0 {
            lock.is_locked.store(false, Ordering::Release);
        }
    }
}
