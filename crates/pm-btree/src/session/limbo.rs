//! Records that readers may still look at: their space is used again when these readers have ended.
//!
//! A reader that is lent a record's bytes announces itself before it looks for the record. A writer takes the record out of the leaf, and then releases
//! its space: at once if no reader is announced, because a reader that comes later does not find it. Otherwise the record waits until every reader
//! has ended that was announced when the record began to wait.

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

    /// Releases a record that is not in a leaf any more, with `release`; or calls `keep`, and lets it wait.
    #[inline]
    pub(crate) fn release(
        &self,
        record: RecordRef,
        keep: impl FnOnce(RecordRef),
        mut release: impl FnMut(RecordRef),
    ) {
        fence(Ordering::SeqCst);
        if !self.readers.is_idle() {
            keep(record);
            self.wait(record, release);
            return;
        }
        release(record);
        if self.is_used.load(Ordering::Relaxed) {
            self.drain(release);
        }
    }

    #[cold]
    fn wait(&self, record: RecordRef, release: impl FnMut(RecordRef)) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_used.store(true, Ordering::Relaxed);
        waiting.new.push(record);
        if waiting.new.len() >= BATCH && self.readers.has_ended() {
            waiting.old.drain(..).for_each(release);
            waiting.old = core::mem::take(&mut waiting.new);
            self.readers.start();
        }
    }

    /// Releases the records whose readers have ended. Returns whether there were any.
    #[cold]
    pub(crate) fn drain(&self, mut release: impl FnMut(RecordRef)) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut has_released = false;
        for _ in 0..2 {
            if !self.readers.has_ended() {
                break;
            }
            has_released |= !waiting.old.is_empty();
            waiting.old.drain(..).for_each(&mut release);
            waiting.old = core::mem::take(&mut waiting.new);
            self.readers.start();
        }
        let is_empty = waiting.old.is_empty() && waiting.new.is_empty();
        self.is_used.store(!is_empty, Ordering::Relaxed);
        has_released
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
        let mut released = Vec::new();
        limbo.release(record(1), |_| (), |record| released.push(record.offset));
        assert_eq!(released, [1], "no reader");
        let first = limbo.enter(0);
        limbo.release(record(2), |_| (), |record| released.push(record.offset));
        let later = limbo.enter(1);
        assert!(!limbo.drain(|record| released.push(record.offset)));
        drop(first);
        assert!(
            !limbo.drain(|record| released.push(record.offset)),
            "the later reader began before the period ended"
        );
        drop(later);
        limbo.release(record(3), |_| (), |record| released.push(record.offset));
        assert_eq!(released, [1, 3, 2]);
    }

    #[test]
    fn records_do_not_wait_for_all_readers_to_end_at_once() {
        let limbo = Limbo::new(1);
        let mut released = 0;
        let mut reader = limbo.enter(0);
        for number in 0..10 * BATCH as u64 {
            limbo.release(record(number), |_| (), |_| released += 1);
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
            let release = |_| is_reused.store(1, Ordering::Relaxed);
            limbo.release(RecordRef { offset: 7, len: 1 }, |_| (), release);
            limbo.drain(release);
            reader.join().expect("no thread panics");
        });
    }
}
