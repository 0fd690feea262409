//! Says that a check, or an operation under a scheduler, does not return. One that waits for a lock, or loops without a look at the region, is stopped by no
//! limit.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A check is reported when it has taken so many times as long as the longest one before it.
const TIMES: u64 = 10;
/// No check is reported before it has taken so long.
const SHORTEST_MS: u64 = 1_000;
/// The first check of a search is reported when it has taken so long.
const FIRST_MS: u64 = 10_000;

const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The checks of a search.
#[derive(Debug)]
pub(crate) struct Watched {
    name: &'static str,
    /// What does not return, for the report.
    what: &'static str,
    /// The milliseconds of the longest check that has returned, and one more; 0 if none has.
    longest_ms: AtomicU64,
}

/// The check that a thread runs.
#[derive(Debug, Default)]
struct Slot {
    /// The milliseconds from the start of the watchdog to the begin of the check, and one more; 0 if there is none.
    begun_ms: AtomicU64,
    /// As [`Watched::longest_ms`], when the check began.
    longest_ms: AtomicU64,
    is_reported: AtomicBool,
    /// Of the search, and what it runs.
    names: Mutex<Names>,
}

/// A check in progress, until it is dropped. Then the check that it was run by, if there is one, is watched again.
pub(crate) struct Check<'w> {
    watched: &'w Watched,
    slot: Arc<Slot>,
    outer: State,
    begun_ms: u64,
}

/// What a slot holds.
type State = (u64, u64, bool, Names);

/// The names of a search and of what it runs.
type Names = (&'static str, &'static str);

struct Watchdog {
    start: Instant,
    slots: Mutex<Vec<Weak<Slot>>>,
}

thread_local! {
    static SLOT: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

impl Watchdog {
    fn get() -> &'static Self {
        static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
        WATCHDOG.get_or_init(|| {
            // Without a thread nothing is reported, and nothing else is missing.
            let started = thread::Builder::new().name("pm-crashsim-watch".to_owned()).spawn(|| {
                loop {
                    thread::sleep(BETWEEN_LOOKS);
                    Self::get().look();
                }
            });
            drop(started);
            Self { start: Instant::now(), slots: Mutex::default() }
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The slot of the calling thread.
    fn slot(&self) -> Arc<Slot> {
        SLOT.with_borrow_mut(|slot| {
            let new = || {
                let slot = Arc::new(Slot::default());
                let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
                slots.retain(|slot| slot.strong_count() > 0);
                slots.push(Arc::downgrade(&slot));
                slot
            };
            Arc::clone(slot.get_or_insert_with(new))
        })
    }

    fn look(&self) {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter().filter_map(Weak::upgrade) {
            if let Some(report) = slot.report(self.now_ms()) {
                eprintln!("pm-crashsim: {report}");
            }
        }
    }
}

impl Slot {
    fn state(&self) -> State {
        let names = *self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reported = self.is_reported.load(Ordering::Relaxed);
        (self.begun_ms.load(Ordering::Relaxed), self.longest_ms.load(Ordering::Relaxed), is_reported, names)
    }

    fn set(&self, (begun_ms, longest_ms, is_reported, names): State) {
        self.begun_ms.store(0, Ordering::Release);
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
        self.longest_ms.store(longest_ms, Ordering::Relaxed);
        self.is_reported.store(is_reported, Ordering::Relaxed);
        self.begun_ms.store(begun_ms, Ordering::Release);
    }

    /// What there is to say about the check, once.
    fn report(&self, now_ms: u64) -> Option<String> {
        let begun_ms = self.begun_ms.load(Ordering::Acquire).checked_sub(1)?;
        let taken_ms = now_ms.saturating_sub(begun_ms);
        let (limit_ms, before) = match self.longest_ms.load(Ordering::Relaxed).checked_sub(1) {
            None => (FIRST_MS, "it is the first one".to_owned()),
            Some(longest_ms) => {
                let before = format!("the longest one before it took {:.3} s", longest_ms as f64 / 1e3);
                (longest_ms.saturating_mul(TIMES).max(SHORTEST_MS), before)
            }
        };
        if taken_ms < limit_ms || self.is_reported.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (.., (name, what)) = self.state();
        Some(format!("{name}: {what} has not returned for {:.1} s; {before}", taken_ms as f64 / 1e3))
    }
}

impl Watched {
    /// Watches the checks of a search under the model with this name.
    pub(crate) const fn checks(name: &'static str) -> Self {
        Self::new(name, "a check")
    }

    /// Watches what `what` says.
    pub(crate) const fn new(name: &'static str, what: &'static str) -> Self {
        Self { name, what, longest_ms: AtomicU64::new(0) }
    }

    /// Begins a check, or what else is watched, of the calling thread.
    pub(crate) fn begin(&self) -> Check<'_> {
        let watchdog = Watchdog::get();
        let slot = watchdog.slot();
        let (outer, begun_ms) = (slot.state(), watchdog.now_ms());
        slot.set((
            begun_ms.saturating_add(1),
            self.longest_ms.load(Ordering::Relaxed),
            false,
            (self.name, self.what),
        ));
        Check { watched: self, slot, outer, begun_ms }
    }
}

impl Drop for Check<'_> {
    fn drop(&mut self) {
        let taken_ms = Watchdog::get().now_ms().saturating_sub(self.begun_ms);
        self.watched.longest_ms.fetch_max(taken_ms.saturating_add(1), Ordering::Relaxed);
        self.slot.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_does_not_return_is_reported_once() {
        let slot = Slot::default();
        assert_eq!(slot.report(1 << 40), None, "there is no check");
        slot.set((101, 2_501, false, ("px86-line", "a check")));
        assert_eq!(slot.report(25_099), None);
        let said = slot.report(25_100).unwrap();
        assert_eq!(
            said,
            "px86-line: a check has not returned for 25.0 s; the longest one before it took 2.500 s"
        );
        assert_eq!(slot.report(30_000), None, "once");
        slot.set((101, 2, false, ("page", "a check")));
        assert_eq!(slot.report(1_099), None, "ten times a millisecond is no time");
        assert!(slot.report(1_100).unwrap().starts_with("page: "), "the search of this check");
        slot.set((101, 0, false, ("eadr", "a check")));
        assert_eq!(slot.report(10_099), None);
        assert!(slot.report(10_100).unwrap().ends_with("; it is the first one"));
    }

    #[test]
    fn slot_has_the_innermost_check() {
        let watched = Watched::checks("page");
        drop(watched.begin());
        let outer = watched.begin();
        let before = outer.slot.state();
        assert!(before.0 != 0 && before.1 != 0 && before.3 == ("page", "a check"), "{before:?}");
        // A check that runs another one, of another search.
        let other = Watched::checks("eadr");
        let inner = other.begin();
        assert_eq!((inner.slot.state().1, inner.slot.state().3), (0, ("eadr", "a check")));
        drop(inner);
        assert_eq!(outer.slot.state(), before);
        let slot = Arc::clone(&outer.slot);
        drop(outer);
        assert_eq!(slot.state().0, 0, "no check");
    }
}
