//! Locks that break when a thread panics while it holds them: what they guard may be half changed.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
#[cfg(loom)]
use loom::sync::{Mutex as Inner, MutexGuard as InnerGuard};
#[cfg(not(loom))]
use spin::mutex::{SpinMutex as Inner, SpinMutexGuard as InnerGuard};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

/// A spin lock around a `T`, released with a plain store. In cache lines of its own.
///
/// Other locks are released with an instruction that waits for all earlier stores, and so, after a flush, for the medium. With this one
/// the owning thread goes on meanwhile. In exchange no thread is woken: a waiting thread polls. So this lock is for state that
/// is rarely contended, and held for the length of a commit at most.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct QuietLock<T> {
    inner: Inner<T>,
    broken: Broken,
}

/// A [`QuietLock`] that this thread holds.
pub(crate) type QuietGuard<'l, T> = Guard<'l, InnerGuard<'l, T>>;

impl<T> QuietLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Inner::new(value), broken: Broken::new() }
    }

    /// Acquires the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<QuietGuard<'_, T>> {
        #[cfg(loom)]
        let inner = self.inner.try_lock().ok();
        #[cfg(not(loom))]
        let inner = self.inner.try_lock();
        inner.map(|inner| self.broken.guard(inner))
    }

    /// Acquires the lock, even if it is broken.
    #[inline]
    pub(crate) fn lock(&self) -> QuietGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Acquires the lock.
    ///
    /// # Panics
    /// When it is broken.
    #[track_caller]
    #[inline]
    pub(crate) fn lock_intact(&self) -> QuietGuard<'_, T> {
        let guard = self.lock();
        self.broken.assert_intact();
        guard
    }

    /// Whether it is neither held nor broken.
    pub(crate) fn is_intact(&self) -> bool {
        self.try_lock().is_some() && !self.broken.is_set()
    }

    #[cfg(loom)]
    fn wait(&self) -> QuietGuard<'_, T> {
        let inner = self.inner.lock().expect("no thread panics in a model");
        self.broken.guard(inner)
    }

    #[cfg(not(loom))]
    #[cold]
    fn wait(&self) -> QuietGuard<'_, T> {
        // For the length of a commit, then of a time slice, then as for something slow.
        let mut turn = 0_u32;
        loop {
            match turn {
                0..64 => core::hint::spin_loop(),
                64..128 => std::thread::yield_now(),
                _ => std::thread::sleep(core::time::Duration::from_micros(50)),
            }
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            turn = turn.saturating_add(1);
        }
    }
}

/// Whether a thread panicked while it held a lock. A poisoned mutex of the standard library can be repaired only after other threads may
/// have found it poisoned.
#[derive(Debug)]
pub(crate) struct Broken(
    /// Not loom's: no schedule depends on it.
    AtomicBool,
);

impl Broken {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The guard of a lock that this thread has acquired by `inner`.
    #[inline]
    pub(crate) fn guard<G>(&self, inner: G) -> Guard<'_, G> {
        let is_kept_intact = std::thread::panicking();
        Guard { inner, broken: self, is_kept_intact, on_its_thread: PhantomData }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[track_caller]
    #[inline]
    pub(crate) fn assert_intact(&self) {
        assert!(!self.is_set(), "a thread panicked while it changed this");
    }
}

/// A lock that this thread holds. It stays on its thread, whose fences wait only for its own flushes.
#[derive(Debug)]
pub(crate) struct Guard<'l, G> {
    inner: G,
    broken: &'l Broken,
    /// Whether a panic leaves the lock intact. Set if the thread was already panicking, and has acquired the lock to roll back.
    is_kept_intact: bool,
    on_its_thread: PhantomData<MutexGuard<'l, ()>>,
}

impl<G> Guard<'_, G> {
    /// A panic of this thread leaves the lock intact: the thread only reads what it guards.
    pub(crate) const fn keep_intact(&mut self) {
        self.is_kept_intact = true;
    }
}

impl<G: Deref> Deref for Guard<'_, G> {
    type Target = G::Target;
    #[inline]
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<'_, G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<G> Drop for Guard<'_, G> {
    /// Runs before the lock is released.
    #[inline]
    fn drop(&mut self) {
        if !self.is_kept_intact && std::thread::panicking() {
            self.broken.0.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::IntactMutex;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Has two implementations for a type that is `Send`, so naming its constant compiles only for a type that is not.
    trait StaysOnItsThread<A> {
        const YES: bool = true;
    }
    struct IsSend;
    impl<T: ?Sized> StaysOnItsThread<()> for T {}
    impl<T: ?Sized + Send> StaysOnItsThread<IsSend> for T {}

    #[test]
    fn guards_are_not_send() {
        const { assert!(<QuietGuard<'_, u64> as StaysOnItsThread<_>>::YES) };
        const { assert!(<crate::log::LaneGuard<'_> as StaysOnItsThread<_>>::YES) };
    }

    struct Defer<F: FnMut()>(F);

    impl<F: FnMut()> Drop for Defer<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    fn panics(f: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(f)).is_err()
    }

    #[test]
    fn panic_breaks_quiet_lock() {
        let lock = QuietLock::new(0);
        assert!(panics(|| {
            *lock.lock() += 1;
            // Acquired during a panic, to roll back: stays intact.
            let _roll_back = Defer(|| *lock.lock_intact() += 1);
            panic!("with nothing locked");
        }));
        assert_eq!(*lock.lock_intact(), 2);
        assert!(panics(|| {
            let mut guard = lock.lock();
            guard.keep_intact();
            panic!("while only reading");
        }));
        assert!(lock.is_intact());
        assert!(panics(|| {
            let _guard = lock.lock();
            panic!("with the lock");
        }));
        assert_eq!(*lock.lock(), 2, "it is released");
        assert!(panics(|| drop(lock.lock_intact())));
        assert!(panics(|| drop(lock.lock_intact())), "and stays broken");
        assert!(!lock.is_intact());
    }

    #[test]
    fn panic_breaks_intact_mutex() {
        let lock = IntactMutex::new(0);
        assert!(panics(|| {
            let mut guard = lock.lock();
            guard.keep_intact();
            panic!("while only reading");
        }));
        assert!(lock.is_intact());
        assert!(panics(|| {
            let _guard = lock.lock();
            panic!("with the lock");
        }));
        assert!(!lock.is_intact());
        assert!(panics(|| drop(lock.lock())), "it stays broken");
    }

    #[test]
    fn one_thread_at_a_time_holds_quiet_lock() {
        let lock = QuietLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut guard = lock.lock();
                        let old = *guard;
                        core::hint::spin_loop();
                        *guard = old + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }
}
