//! Locks that are poisoned when a thread panics while it holds them, because the guarded data may be half changed.

use crate::sync::{self, Mutex, MutexGuard};
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
#[cfg(loom)]
use loom::sync::{Mutex as Inner, MutexGuard as InnerGuard};
#[cfg(not(loom))]
use spin::mutex::{SpinMutex as Inner, SpinMutexGuard as InnerGuard};

/// A spin lock with poisoning, released with a plain store. It has cache lines of its own.
///
/// A mutex is released with a locked instruction, which waits for all earlier stores and so, after a flush, for the medium. A thread that releases
/// this lock does not wait. In exchange, a waiting thread polls, because no thread is woken. So this lock is for state that is rarely contended, and
/// that is usually locked for the length of one commit.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct SpinLock<T> {
    inner: Inner<Guarded<T>>,
}

pub(crate) type SpinGuard<'l, T> = Guard<T, InnerGuard<'l, Guarded<T>>>;

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Inner::new(Guarded::new(value)) }
    }

    /// Acquires the lock if it is free, even if it is poisoned.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        #[cfg(loom)]
        let inner = self.inner.try_lock().ok();
        #[cfg(not(loom))]
        let inner = self.inner.try_lock();
        inner.map(Guard::new)
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
        guard.assert_unpoisoned();
        guard
    }

    pub(crate) fn is_unlocked_and_unpoisoned(&self) -> bool {
        self.try_lock().is_some_and(|guard| !guard.inner.is_poisoned)
    }

    #[cfg(loom)]
    fn wait(&self) -> SpinGuard<'_, T> {
        let inner = self.inner.lock().expect("no thread panics in a model");
        Guard::new(inner)
    }

    #[cfg(not(loom))]
    #[cold]
    fn wait(&self) -> SpinGuard<'_, T> {
        // The owning thread may be committing, may have lost its time slice, or may be waiting for a slow medium. So polling slows down over time.
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
/// The standard library poisons a mutex when its owner panics, even if the owner only reads. The poison can be cleared only afterwards, when other
/// threads may have observed it. A guard of this mutex can [ignore panics](Guard::ignore_panics).
#[derive(Debug)]
pub(crate) struct PoisonMutex<T> {
    inner: Mutex<Guarded<T>>,
}

pub(crate) type PoisonMutexGuard<'m, T> = Guard<T, MutexGuard<'m, Guarded<T>>>;

impl<T> PoisonMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(Guarded::new(value)) }
    }

    /// Acquires the lock.
    ///
    /// # Panics
    /// When the lock is poisoned.
    #[track_caller]
    pub(crate) fn lock_unpoisoned(&self) -> PoisonMutexGuard<'_, T> {
        let guard = Guard::new(sync::lock(&self.inner));
        guard.assert_unpoisoned();
        guard
    }

    pub(crate) fn is_unlocked_and_unpoisoned(&self) -> bool {
        match self.inner.try_lock() {
            Ok(guarded) => !guarded.is_poisoned,
            Err(std::sync::TryLockError::Poisoned(error)) => !error.into_inner().is_poisoned,
            Err(std::sync::TryLockError::WouldBlock) => false,
        }
    }
}

/// A guarded value, and the state of its lock.
#[derive(Debug)]
pub(crate) struct Guarded<T> {
    value: T,
    /// Whether a thread panicked while it held the lock.
    is_poisoned: bool,
    /// Whether a panic of the owning thread leaves the lock unpoisoned. True from the start if the thread acquires the lock during a panic, to roll
    /// back.
    ignores_panics: bool,
}

impl<T> Guarded<T> {
    const fn new(value: T) -> Self {
        Self { value, is_poisoned: false, ignores_panics: false }
    }
}

/// A lock that this thread holds until this is dropped. Not `Send`: the owner also fences, and a fence waits only for flushes of its own thread.
///
/// For a spin lock this is one pointer, which is returned in a register. A longer guard would be stored field by field and copied by wider loads.
/// Such a load waits until the stores have left the store buffer, and so, after a flush, for the medium.
#[derive(Debug)]
pub(crate) struct Guard<T, G: DerefMut<Target = Guarded<T>>> {
    inner: G,
    not_send: PhantomData<(T, std::sync::MutexGuard<'static, ()>)>,
}

impl<T, G: DerefMut<Target = Guarded<T>>> Guard<T, G> {
    #[inline]
    fn new(mut inner: G) -> Self {
        inner.ignores_panics = std::thread::panicking();
        Self { inner, not_send: PhantomData }
    }

    #[track_caller]
    #[inline]
    fn assert_unpoisoned(&self) {
        assert!(!self.inner.is_poisoned, "the lock is poisoned: a thread panicked while holding it");
    }

    /// From now on a panic of this thread does not poison the lock. The thread must only read the guarded value.
    pub(crate) fn ignore_panics(&mut self) {
        self.inner.ignores_panics = true;
    }
}

impl<T, G: DerefMut<Target = Guarded<T>>> Deref for Guard<T, G> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner.value
    }
}

impl<T, G: DerefMut<Target = Guarded<T>>> DerefMut for Guard<T, G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner.value
    }
}

impl<T, G: DerefMut<Target = Guarded<T>>> Drop for Guard<T, G> {
    /// Runs before the lock is released.
    #[inline]
    fn drop(&mut self) {
        if !self.inner.ignores_panics && std::thread::panicking() {
            self.inner.is_poisoned = true;
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
        assert!(lock.is_unlocked_and_unpoisoned());
        assert!(panics(|| {
            let _guard = lock.lock();
            panic!("with the lock");
        }));
        assert_eq!(*lock.lock(), 2, "it is released");
        assert!(panics(|| drop(lock.lock_unpoisoned())));
        assert!(panics(|| drop(lock.lock_unpoisoned())), "and stays poisoned");
        assert!(!lock.is_unlocked_and_unpoisoned());
    }

    #[test]
    fn panic_poisons_mutex() {
        let lock = PoisonMutex::new(0);
        assert!(panics(|| {
            let mut guard = lock.lock_unpoisoned();
            guard.ignore_panics();
            panic!("while only reading");
        }));
        assert!(lock.is_unlocked_and_unpoisoned());
        assert!(panics(|| {
            let _guard = lock.lock_unpoisoned();
            panic!("with the lock");
        }));
        assert!(!lock.is_unlocked_and_unpoisoned());
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
