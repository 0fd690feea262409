//! Says that a check does not return. A check that waits for a lock, or loops without a look at the region, is stopped by no limit.

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
    /// The milliseconds of the longest check that has returned, and one more; 0 if none has.
    longest_ms: AtomicU64,
}

/// The check that a thread runs.
#[derive(Debug, Default)]
struct Slot {
    /// The milliseconds from the start of the watchdog to the begin of the check, and one more; 0 if there is none.
    begun_ms: AtomicU64,
    limit_ms: AtomicU64,
    is_reported: AtomicBool,
    name: OnceLock<&'static str>,
}

/// A check in progress, until it is dropped. Then the check that it was run by, if there is one, is watched again.
pub(crate) struct Check<'w> {
    watched: &'w Watched,
    slot: Arc<Slot>,
    outer: (u64, u64, bool),
    begun_ms: u64,
}

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
    /// What there is to say about the check, once.
    fn report(&self, now_ms: u64) -> Option<String> {
        let begun_ms = self.begun_ms.load(Ordering::Acquire).checked_sub(1)?;
        let taken_ms = now_ms.saturating_sub(begun_ms);
        let limit_ms = self.limit_ms.load(Ordering::Relaxed);
        if taken_ms < limit_ms || self.is_reported.swap(true, Ordering::Relaxed) {
            return None;
        }
        let name = self.name.get().copied().unwrap_or_default();
        let before = match limit_ms {
            FIRST_MS => "it is the first one".to_owned(),
            SHORTEST_MS => "the longest one before it took less than 0.1 s".to_owned(),
            limit_ms => format!("the longest one before it took {:.1} s", (limit_ms / TIMES) as f64 / 1e3),
        };
        Some(format!("{name}: a check has not returned for {:.1} s; {before}", taken_ms as f64 / 1e3))
    }
}

impl Watched {
    /// Watches the checks of a search under the model with this name.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, longest_ms: AtomicU64::new(0) }
    }

    /// Begins a check of the calling thread.
    pub(crate) fn begin(&self) -> Check<'_> {
        let watchdog = Watchdog::get();
        let slot = watchdog.slot();
        let outer = (
            slot.begun_ms.load(Ordering::Relaxed),
            slot.limit_ms.load(Ordering::Relaxed),
            slot.is_reported.load(Ordering::Relaxed),
        );
        let limit_ms = match self.longest_ms.load(Ordering::Relaxed).checked_sub(1) {
            None => FIRST_MS,
            Some(longest_ms) => longest_ms.saturating_mul(TIMES).max(SHORTEST_MS),
        };
        let begun_ms = watchdog.now_ms();
        slot.begun_ms.store(0, Ordering::Release);
        slot.name.get_or_init(|| self.name);
        slot.limit_ms.store(limit_ms, Ordering::Relaxed);
        slot.is_reported.store(false, Ordering::Relaxed);
        slot.begun_ms.store(begun_ms.saturating_add(1), Ordering::Release);
        Check { watched: self, slot, outer, begun_ms }
    }
}

impl Drop for Check<'_> {
    fn drop(&mut self) {
        let taken_ms = Watchdog::get().now_ms().saturating_sub(self.begun_ms);
        self.watched.longest_ms.fetch_max(taken_ms.saturating_add(1), Ordering::Relaxed);
        let (begun_ms, limit_ms, is_reported) = self.outer;
        self.slot.begun_ms.store(0, Ordering::Release);
        self.slot.limit_ms.store(limit_ms, Ordering::Relaxed);
        self.slot.is_reported.store(is_reported, Ordering::Relaxed);
        self.slot.begun_ms.store(begun_ms, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_does_not_return_is_reported_once() {
        let slot = Slot::default();
        assert_eq!(slot.report(1 << 40), None, "there is no check");
        slot.limit_ms.store(25_000, Ordering::Relaxed);
        slot.name.set("px86-line").unwrap();
        slot.begun_ms.store(101, Ordering::Relaxed);
        assert_eq!(slot.report(25_099), None);
        let said = slot.report(25_100).unwrap();
        assert_eq!(
            said,
            "px86-line: a check has not returned for 25.0 s; the longest one before it took 2.5 s"
        );
        assert_eq!(slot.report(30_000), None, "once");
    }

    #[test]
    fn limit_follows_the_longest_check() {
        let watched = Watched::new("page");
        let limit = |check: &Check<'_>| check.slot.limit_ms.load(Ordering::Relaxed);
        let first = watched.begin();
        assert_eq!(limit(&first), FIRST_MS);
        drop(first);
        assert_eq!(limit(&watched.begin()), SHORTEST_MS);
        watched.longest_ms.store(701, Ordering::Relaxed);
        let outer = watched.begin();
        assert_eq!(limit(&outer), 7_000);
        let begun = outer.slot.begun_ms.load(Ordering::Relaxed);
        // A check that runs another one.
        drop(Watched::new("eadr").begin());
        assert_eq!((limit(&outer), outer.slot.begun_ms.load(Ordering::Relaxed)), (7_000, begun));
        let slot = Arc::clone(&outer.slot);
        drop(outer);
        assert_eq!(slot.begun_ms.load(Ordering::Relaxed), 0, "no check");
    }
}
