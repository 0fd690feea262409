//! Records that readers may still look at: their space is used again when these readers have ended.
//!
//! A reader that is lent a record's bytes announces itself before it looks for the record. A writer takes the record out of the leaf, and then
//! releases its space: at once if no reader is announced, because a reader that comes later does not find it. Otherwise the record waits until every
//! reader has ended that was announced when the record began to wait.

use super::grace::{Active, Grace};
use crate::node::RecordRef;
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// The records that begin to wait before it is looked whether earlier ones can be released.
const BATCH: usize = 64;

/// The records that wait, and the readers for which they wait.
#[derive(Debug)]
pub(crate) struct Limbo {
    readers: Grace,
    waiting: Mutex<Waiting>,
    /// Whether records wait.
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Those of the present period of readers, and those of the one before.
    new: Vec<RecordRef>,
    old: Vec<RecordRef>,
}

impl Limbo {
    pub(crate) fn new(stripes: usize) -> Self {
        Self { readers: Grace::new(stripes), waiting: Mutex::default(), is_used: AtomicBool::new(false) }
    }

    /// Announces a reader of the thread with this number, until the returned value is dropped.
    #[inline]
    pub(crate) fn enter(&self, thread: usize) -> Active<'_> {
        let active = self.readers.enter(thread);
        // Either the writer sees this reader, or this reader sees that the record is not in its leaf any more.
        fence(Ordering::SeqCst);
        active
    }

    /// Whether readers are announced that may look at a record that was taken out of its leaf before this call. Otherwise its space can be used
    /// again.
    #[inline]
    pub(crate) fn has_readers(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.readers.is_idle()
    }

    /// Whether records wait.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Lets a record wait for the readers. Returns the records that have waited long enough, if it is time to look.
    #[cold]
    #[must_use = "the space of these records can be used again"]
    pub(crate) fn wait(&self, record: RecordRef) -> Vec<RecordRef> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_used.store(true, Ordering::Relaxed);
        waiting.new.push(record);
        if waiting.new.len() < BATCH || !self.readers.has_ended() {
            return Vec::new();
        }
        let new = core::mem::take(&mut waiting.new);
        self.readers.start();
        core::mem::replace(&mut waiting.old, new)
    }

    /// The records that have waited long enough: their readers have ended.
    #[cold]
    #[must_use = "the space of these records can be used again"]
    pub(crate) fn drain(&self) -> Vec<RecordRef> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = Vec::new();
        for _ in 0..2 {
            if !self.readers.has_ended() {
                break;
            }
            ended.append(&mut waiting.old);
            waiting.old = core::mem::take(&mut waiting.new);
            self.readers.start();
        }
        let is_empty = waiting.old.is_empty() && waiting.new.is_empty();
        self.is_used.store(!is_empty, Ordering::Relaxed);
        ended
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn record(number: u64) -> RecordRef {
        RecordRef { offset: number, len: 1 }
    }

    #[test]
    fn records_wait_for_readers_from_before() {
        let limbo = Limbo::new(2);
        assert!(!limbo.has_readers());
        let first = limbo.enter(0);
        assert!(limbo.has_readers());
        assert_eq!(limbo.wait(record(2)), []);
        let later = limbo.enter(1);
        assert_eq!(limbo.drain(), []);
        drop(first);
        assert_eq!(limbo.drain(), [], "the later reader began before the period ended");
        drop(later);
        assert!(limbo.is_used() && !limbo.has_readers());
        assert_eq!(limbo.drain(), [record(2)]);
        assert!(!limbo.is_used());
    }

    #[test]
    fn records_do_not_wait_for_all_readers_to_end_at_once() {
        let limbo = Limbo::new(1);
        let mut released = 0;
        let mut reader = limbo.enter(0);
        for number in 0..10 * BATCH as u64 {
            released += limbo.wait(record(number)).len();
            // There is always a reader.
            let next = limbo.enter(0);
            drop(core::mem::replace(&mut reader, next));
        }
        assert!(released >= 7 * BATCH, "{released}");
    }
}

/// Interleavings of a reader with a release, with the orders of the C++ memory model. Run by `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod interleaved {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    #[test]
    fn loom_record_is_not_reused_while_a_reader_looks_at_it() {
        loom::model(|| {
            let limbo = Arc::new(Limbo::new(1));
            // The record that a leaf names, and whether its space was released.
            let (named, is_reused) = (Arc::new(AtomicU64::new(7)), Arc::new(AtomicU64::new(0)));
            let reader = {
                let (limbo, named, is_reused) =
                    (Arc::clone(&limbo), Arc::clone(&named), Arc::clone(&is_reused));
                thread::spawn(move || {
                    let _active = limbo.enter(0);
                    if named.load(Ordering::Acquire) == 7 {
                        assert_eq!(is_reused.load(Ordering::Relaxed), 0, "the record is lent");
                        thread::yield_now();
                        assert_eq!(is_reused.load(Ordering::Relaxed), 0, "the record is lent");
                    }
                })
            };
            named.store(8, Ordering::Release);
            let record = RecordRef { offset: 7, len: 1 };
            let waits = limbo.has_readers();
            let released = if waits { limbo.wait(record) } else { vec![record] };
            if !released.is_empty() || !limbo.drain().is_empty() {
                is_reused.store(1, Ordering::Relaxed);
            }
            reader.join().expect("no thread panics");
        });
    }
}
