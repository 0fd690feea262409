//! A lock that is given back by a plain store.
//!
//! Others are given back by an instruction that waits for everything stored before it: behind a fence, for the medium. This one lets
//! its owner go on meanwhile. The price is that nobody is woken: whoever waits asks again and again. So it is for what is mostly
//! free, and held for the length of a commit at most.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
#[cfg(loom)]
use loom::sync::{Mutex as Inner, MutexGuard as InnerGuard};
#[cfg(not(loom))]
use spin::mutex::{SpinMutex as Inner, SpinMutexGuard as InnerGuard};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

/// A lock around a `T`. In lines of its own: its neighbours are others'.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct QuietLock<T> {
    inner: Inner<T>,
    /// A thread panicked while it had the lock. Not loom's: no schedule depends on it.
    is_broken: AtomicBool,
}

/// The lock, for as long as this lives, on the thread that took it: what that has flushed, its own fence waits for.
#[derive(Debug)]
pub(crate) struct QuietGuard<'l, T> {
    inner: InnerGuard<'l, T>,
    is_broken: &'l AtomicBool,
    /// Whoever takes back, because of a panic, what it had begun, takes locks as well.
    was_panicking: bool,
    on_its_thread: PhantomData<MutexGuard<'l, ()>>,
}

impl<T> QuietLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Inner::new(value), is_broken: AtomicBool::new(false) }
    }

    /// Takes it if nobody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<QuietGuard<'_, T>> {
        #[cfg(loom)]
        let inner = self.inner.try_lock().ok();
        #[cfg(not(loom))]
        let inner = self.inner.try_lock();
        inner.map(|inner| self.guard(inner))
    }

    /// Takes it, however long that takes.
    #[inline]
    pub(crate) fn lock(&self) -> QuietGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// As [`lock`](Self::lock). A thread that panicked with it held had a bug, and may have left half of a change: then this
    /// panics too.
    #[track_caller]
    #[inline]
    pub(crate) fn lock_intact(&self) -> QuietGuard<'_, T> {
        let guard = self.lock();
        assert!(!self.is_broken.load(Ordering::Relaxed), "a thread panicked while it changed this");
        guard
    }

    /// Whether it is free, and no thread panicked while it had it.
    pub(crate) fn is_intact(&self) -> bool {
        self.try_lock().is_some() && !self.is_broken.load(Ordering::Relaxed)
    }

    #[inline]
    fn guard<'l>(&'l self, inner: InnerGuard<'l, T>) -> QuietGuard<'l, T> {
        let was_panicking = std::thread::panicking();
        QuietGuard { inner, is_broken: &self.is_broken, was_panicking, on_its_thread: PhantomData }
    }

    #[cfg(loom)]
    fn wait(&self) -> QuietGuard<'_, T> {
        let inner = self.inner.lock().expect("no thread panics in a model");
        self.guard(inner)
    }

    #[cfg(not(loom))]
    #[cold]
    fn wait(&self) -> QuietGuard<'_, T> {
        // As long as a commit takes, then as long as a time slice, then as others do who wait for something slow.
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

impl<T> QuietGuard<'_, T> {
    /// Has a panic of this thread leave the lock as it is: its owner only looks at what it guards.
    pub(crate) fn keep_intact(&mut self) {
        self.was_panicking = true;
    }
}

impl<T> Deref for QuietGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for QuietGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for QuietGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::log::LaneGuard;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Which of its implementations is meant is clear only for what is not `Send`: for anything else this does not compile.
    trait StaysOnItsThread<A> {
        const YES: bool = true;
    }
    struct IsSend;
    impl<T: ?Sized> StaysOnItsThread<()> for T {}
    impl<T: ?Sized + Send> StaysOnItsThread<IsSend> for T {}

    #[test]
    fn who_has_a_lock_stays_on_its_thread() {
        const { assert!(<QuietGuard<'_, u64> as StaysOnItsThread<_>>::YES) };
        const { assert!(<LaneGuard<'_> as StaysOnItsThread<_>>::YES) };
    }

    #[test]
    fn what_was_half_changed_when_a_thread_panicked_is_not_gone_on_with() {
        let lock = QuietLock::new(0);
        let half = catch_unwind(AssertUnwindSafe(|| {
            *lock.lock() += 1;
            // What is taken while a panic is under way, to take things back, is given back whole.
            let _taken_back = Defer(|| *lock.lock_intact() += 1);
            panic!("with nothing locked");
        }));
        assert!(half.is_err());
        assert_eq!(*lock.lock_intact(), 2);
        let half = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("with the lock");
        }));
        assert!(half.is_err());
        assert_eq!(*lock.lock(), 2, "it is given back");
        assert!(catch_unwind(AssertUnwindSafe(|| *lock.lock_intact())).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| *lock.lock_intact())).is_err(), "and stays broken");
    }

    struct Defer<F: FnMut()>(F);

    impl<F: FnMut()> Drop for Defer<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    #[test]
    fn no_two_threads_have_it_at_once() {
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
