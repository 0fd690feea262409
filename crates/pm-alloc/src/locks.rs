//! Locks that are poisoned when a thread panics while it holds them, because the guarded data may be half changed.

use crate::sync::{self, Mutex, MutexGuard};
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
#[cfg(loom)]
use loom::sync::{Mutex as Inner, MutexGuard as InnerGuard};
#[cfg(not(loom))]
use spin::mutex::{SpinMutex as Inner, SpinMutexGuard as InnerGuard};
use std::sync::atomic::{AtomicBool, Ordering};

/// A spin lock with poisoning, released with a plain store. It has cache lines of its own.
///
/// A mutex is released with a locked instruction, which waits for all earlier stores and so, after a flush, for the medium. A thread that releases
/// this lock does not wait. In exchange, a waiting thread polls, because no thread is woken. So this lock is for state that is rarely contended, and
/// that is locked for the length of a commit at most.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct SpinLock<T> {
    inner: Inner<T>,
    poison: Poison,
}

pub(crate) type SpinGuard<'l, T> = Guard<'l, InnerGuard<'l, T>>;

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Inner::new(value), poison: Poison::new() }
    }

    /// Acquires the lock if it is free, even if it is poisoned.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        #[cfg(loom)]
        let inner = self.inner.try_lock().ok();
        #[cfg(not(loom))]
        let inner = self.inner.try_lock();
        inner.map(|inner| self.poison.guard(inner))
    }

    /// Acquires the lock, even if it is poisoned.
    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Acquires the lock.
    ///
    /// # Panics
    /// When the lock is poisoned.
    #[track_caller]
    #[inline]
    pub(crate) fn lock_unpoisoned(&self) -> SpinGuard<'_, T> {
        let guard = self.lock();
        self.poison.assert_unset();
        guard
    }

    pub(crate) fn is_free_and_unpoisoned(&self) -> bool {
        self.try_lock().is_some() && !self.poison.is_set()
    }

    #[cfg(loom)]
    fn wait(&self) -> SpinGuard<'_, T> {
        let inner = self.inner.lock().expect("no thread panics in a model");
        self.poison.guard(inner)
    }

    #[cfg(not(loom))]
    #[cold]
    fn wait(&self) -> SpinGuard<'_, T> {
        // The owning thread may be committing, may have lost its time slice, or may be waiting for a slow medium: so the polling slows down.
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

/// A mutex with poisoning.
///
/// This is not the standard library's poisoning, because a thread that panics while it only reads cannot prevent that. It can only clear it
/// afterwards, when other threads may have observed it. A guard of this mutex can [ignore panics](Guard::ignore_panics).
#[derive(Debug)]
pub(crate) struct PoisonMutex<T> {
    inner: Mutex<T>,
    poison: Poison,
}

pub(crate) type PoisonMutexGuard<'m, T> = Guard<'m, MutexGuard<'m, T>>;

impl<T> PoisonMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), poison: Poison::new() }
    }

    /// Acquires the lock.
    ///
    /// # Panics
    /// When the lock is poisoned.
    #[track_caller]
    pub(crate) fn lock_unpoisoned(&self) -> PoisonMutexGuard<'_, T> {
        let inner = sync::lock(&self.inner);
        self.poison.assert_unset();
        self.poison.guard(inner)
    }

    pub(crate) fn is_free_and_unpoisoned(&self) -> bool {
        let is_held = matches!(self.inner.try_lock(), Err(std::sync::TryLockError::WouldBlock));
        !is_held && !self.poison.is_set()
    }
}

/// Whether a thread panicked while it held a lock.
#[derive(Debug)]
struct Poison(
    /// Not a loom atomic, because no schedule depends on it.
    AtomicBool,
);

impl Poison {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The guard of a lock that this thread has acquired. `inner` is the guard of the inner lock.
    #[inline]
    fn guard<G>(&self, inner: G) -> Guard<'_, G> {
        let ignores_panics = std::thread::panicking();
        Guard { inner, poison: self, ignores_panics, not_send: PhantomData }
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[track_caller]
    #[inline]
    fn assert_unset(&self) {
        assert!(!self.is_set(), "the lock is poisoned: a thread panicked while it held it");
    }
}

/// A lock that this thread holds. Not `Send`: a fence waits for the flushes of its own thread only.
#[derive(Debug)]
pub(crate) struct Guard<'l, G> {
    inner: G,
    poison: &'l Poison,
    /// Whether a panic leaves the lock unpoisoned. True from the start if the thread was already panicking when it acquired the lock, to roll back.
    ignores_panics: bool,
    not_send: PhantomData<std::sync::MutexGuard<'l, ()>>,
}

impl<G> Guard<'_, G> {
    /// From now on a panic of this thread does not poison the lock: the thread only reads what the lock guards.
    pub(crate) const fn ignore_panics(&mut self) {
        self.ignores_panics = true;
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
        if !self.ignores_panics && std::thread::panicking() {
            self.poison.0.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A type that is `Send` implements this trait twice, so naming the constant compiles only for a type that is not `Send`.
    trait NotSend<A> {
        const YES: bool = true;
    }
    struct IsSend;
    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<IsSend> for T {}

    #[test]
    fn guards_are_not_send() {
        const { assert!(<SpinGuard<'_, u64> as NotSend<_>>::YES) };
        const { assert!(<crate::log::LaneGuard<'_> as NotSend<_>>::YES) };
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
    fn panic_poisons_spin_lock() {
        let lock = SpinLock::new(0);
        assert!(panics(|| {
            *lock.lock() += 1;
            // Acquired during a panic, to roll back: not poisoned.
            let _roll_back = Defer(|| *lock.lock_unpoisoned() += 1);
            panic!("with nothing locked");
        }));
        assert_eq!(*lock.lock_unpoisoned(), 2);
        assert!(panics(|| {
            let mut guard = lock.lock();
            guard.ignore_panics();
            panic!("while only reading");
        }));
        assert!(lock.is_free_and_unpoisoned());
        assert!(panics(|| {
            let _guard = lock.lock();
            panic!("with the lock");
        }));
        assert_eq!(*lock.lock(), 2, "it is released");
        assert!(panics(|| drop(lock.lock_unpoisoned())));
        assert!(panics(|| drop(lock.lock_unpoisoned())), "and stays poisoned");
        assert!(!lock.is_free_and_unpoisoned());
    }

    #[test]
    fn panic_poisons_mutex() {
        let lock = PoisonMutex::new(0);
        assert!(panics(|| {
            let mut guard = lock.lock_unpoisoned();
            guard.ignore_panics();
            panic!("while only reading");
        }));
        assert!(lock.is_free_and_unpoisoned());
        assert!(panics(|| {
            let _guard = lock.lock_unpoisoned();
            panic!("with the lock");
        }));
        assert!(!lock.is_free_and_unpoisoned());
        assert!(panics(|| drop(lock.lock_unpoisoned())), "it stays poisoned");
    }

    #[test]
    fn spin_lock_excludes_other_threads() {
        let lock = SpinLock::new(0_u64);
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
