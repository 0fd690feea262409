//! Grace periods: from when on every change that was in progress at some moment has ended.
//!
//! They move the durable epoch while a store is in use: everything that changes have stored before the start of a period is fenced at its end. A
//! change announces itself on a line that few other threads write, before it reads the epoch.

#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// The number of processors. The standard library reads files for it, at each call.
pub(super) fn processor_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Numbers the threads of the process, so that threads use different shards.
pub(super) fn thread_number() -> usize {
    // Not one of loom, which has none in a static.
    use core::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

#[derive(Debug, Default)]
struct Stripe {
    /// The changes in progress that have begun in periods with an even and with an odd number.
    active: [AtomicU32; 2],
    /// All changes, modulo 2<sup>32</sup>; inexact if threads share the stripe.
    changes: AtomicU32,
}

/// The changes in progress, by the period in which they have begun.
#[derive(Debug)]
pub(crate) struct Grace {
    period: AtomicU64,
    stripes: Box<[CachePadded<Stripe>]>,
}

/// A change in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Active<'g> {
    count: &'g AtomicU32,
}

impl Drop for Active<'_> {
    #[inline]
    fn drop(&mut self) {
        // The change has fenced.
        self.count.fetch_sub(1, Ordering::Release);
    }
}

impl Grace {
    pub(crate) fn new(stripes: usize) -> Self {
        let stripes = (0..stripes).map(|_| CachePadded::default()).collect();
        Self { period: AtomicU64::new(0), stripes }
    }

    /// Counts a change of the thread with this number. True for one of `interval` changes: then the caller checks whether the period has ended.
    #[inline]
    pub(crate) fn is_check_due(&self, thread: usize, interval: u32) -> bool {
        let stripe = &self.stripes[thread % self.stripes.len()];
        let changes = stripe.changes.load(Ordering::Relaxed).wrapping_add(1);
        stripe.changes.store(changes, Ordering::Relaxed);
        changes.is_multiple_of(interval)
    }

    /// Announces a change of the thread with this number.
    #[inline]
    pub(crate) fn enter(&self, thread: usize) -> Active<'_> {
        let stripe = &self.stripes[thread % self.stripes.len()];
        loop {
            let period = self.period.load(Ordering::Acquire);
            let count = &stripe.active[(period & 1) as usize];
            count.fetch_add(1, Ordering::AcqRel);
            // If the period has changed, the thread that changed it may have missed this change.
            if self.period.load(Ordering::Acquire) == period {
                return Active { count };
            }
            count.fetch_sub(1, Ordering::Release);
        }
    }

    /// Starts a period. The one before it must have [ended](Self::has_ended), and one thread at a time may call this.
    pub(crate) fn start(&self) {
        self.period.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether nothing is in progress. The caller's fence orders this after what it has done before.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.stripes.iter().all(|stripe| stripe.active.iter().all(|count| count.load(Ordering::Acquire) == 0))
    }

    /// Whether nothing is in progress. Whatever announces itself after this has looked at its count sees what the caller has stored before.
    pub(crate) fn is_still(&self) -> bool {
        // Additions, because they read the last value.
        let counts = self.stripes.iter().flat_map(|stripe| &stripe.active);
        counts.into_iter().all(|count| count.fetch_add(0, Ordering::AcqRel) == 0)
    }

    /// Whether every change that had begun before the last start has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let before = usize::from(self.period.load(Ordering::Acquire).is_multiple_of(2));
        // An addition, because it reads the last value: a change that announces itself after it sees the period that was started before.
        self.stripes.iter().all(|stripe| stripe.active[before].fetch_add(0, Ordering::AcqRel) == 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn period_ends_with_changes_from_before_it() {
        let grace = Grace::new(2);
        assert!(grace.has_ended());
        let before = grace.enter(0);
        grace.start();
        let after = grace.enter(1);
        assert!(!grace.has_ended());
        drop(before);
        assert!(grace.has_ended(), "a change that began in the period does not count");
        grace.start();
        assert!(!grace.has_ended(), "it counts in the next one");
        drop(after);
        assert!(grace.has_ended());
    }

    #[test]
    fn check_is_due_after_some_changes() {
        let grace = Grace::new(1);
        assert_eq!((0..200).filter(|_| grace.is_check_due(7, 100)).count(), 2);
    }
}

/// Interleavings of a change with the end of a period, with the orders of the C++ memory model. Run by `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod interleaved {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_change_in_progress_has_no_epoch_below_the_durable_one() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((Grace::new(1), AtomicU64::new(0), AtomicU64::new(0)));
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (grace, epoch, durable) = &*other;
                for _ in 0..2 {
                    let active = grace.enter(0);
                    let own = epoch.load(Ordering::Acquire);
                    assert!(own >= durable.load(Ordering::Acquire));
                    drop(active);
                }
            });
            let (grace, epoch, durable) = &*shared;
            for next in 1..3 {
                if !grace.has_ended() {
                    continue;
                }
                epoch.store(next, Ordering::Release);
                grace.start();
                if grace.has_ended() {
                    durable.store(next, Ordering::Release);
                }
            }
            thread.join().expect("no thread panics");
        });
    }

    /// As `Session::begin_change` and `Session::hold_off_changes`.
    #[test]
    fn loom_no_change_is_in_progress_while_changes_are_held_off() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            // Whether changes are held off, and what they change.
            let shared = Arc::new((Grace::new(2), AtomicU64::new(0), AtomicU64::new(0)));
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (grace, is_held_off, leaf) = &*other;
                for _ in 0..2 {
                    let active = grace.enter(1);
                    if is_held_off.load(Ordering::Acquire) == 0 {
                        leaf.store(1, Ordering::Relaxed);
                        leaf.store(0, Ordering::Relaxed);
                    }
                    drop(active);
                }
            });
            let (grace, is_held_off, leaf) = &*shared;
            assert_eq!(is_held_off.swap(1, Ordering::AcqRel), 0);
            if grace.is_still() {
                assert_eq!(leaf.load(Ordering::Relaxed), 0);
                thread::yield_now();
                assert_eq!(leaf.load(Ordering::Relaxed), 0);
            }
            is_held_off.store(0, Ordering::Release);
            thread.join().expect("no thread panics");
        });
    }
}
