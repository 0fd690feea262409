//! The counters, and the groups that have ended and wait to be written back.

use crate::{FenceError, Pmem};
use core::sync::atomic::AtomicBool;
use std::collections::VecDeque;
use std::sync::Weak;

#[cfg(all(loom, test))]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(all(loom, test)))]
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The serial number of a counter without a group.
const FREE: u64 = 0;

/// A group that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Unique, and ascending in the order in which groups end; never 0.
    pub(super) serial: u64,
    /// `None` if it was durable when it ended.
    pub(super) counter: Option<u16>,
}

/// A group that waits.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) group: Group,
    /// The numbers of its lines, in any order.
    pub(super) lines: Vec<u64>,
}

/// The number of lines of a group that may not be durable.
#[derive(Debug)]
struct Counter {
    /// Of its group, once that has ended.
    serial: AtomicU64,
    count: AtomicU32,
}

/// All counters.
#[derive(Debug)]
pub(super) struct Groups {
    counters: Box<[Counter]>,
    is_in_order: bool,
    free: Mutex<Vec<u16>>,
    queue: Mutex<Queue>,
    /// The serial number of the last group up to which all are durable.
    durable: AtomicU64,
    /// The memory, for a thread that ends with a group.
    memory: Option<Weak<dyn Pmem + Send + Sync>>,
    /// Whether the fence of such a thread has failed.
    has_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Ended>,
    last_serial: u64,
}

impl Groups {
    pub(super) fn new(counter_count: u16, is_in_order: bool) -> Self {
        let counter = |_| Counter { serial: AtomicU64::new(FREE), count: AtomicU32::new(0) };
        Self {
            counters: (0..counter_count).map(counter).collect(),
            is_in_order,
            free: Mutex::new((0..counter_count).rev().collect()),
            queue: Mutex::new(Queue::default()),
            durable: AtomicU64::new(0),
            memory: None,
            has_failed: AtomicBool::new(false),
        }
    }

    /// The groups of stores to this memory.
    pub(super) fn with_memory(mut self, memory: Weak<dyn Pmem + Send + Sync>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Fences for a thread that ends, which cannot return an error: if the fence fails, no group becomes durable any more.
    ///
    /// # Durability
    /// When it returns, what the thread has stored around the cache, or flushed, is durable, or [`check`](Self::check) fails.
    pub(super) fn fence_for_thread(&self) {
        let Some(memory) = self.memory.as_ref().and_then(Weak::upgrade) else { return };
        // DURABILITY POINT
        if memory.fence().is_err() {
            self.has_failed.store(true, core::sync::atomic::Ordering::Release);
        }
    }

    /// Checks that no [fence of a thread that has ended](Self::fence_for_thread) has failed.
    pub(super) fn check(&self) -> Result<(), FenceError> {
        if self.has_failed.load(core::sync::atomic::Ordering::Acquire) {
            Err(FenceError::Poisoned)
        } else {
            Ok(())
        }
    }

    /// Takes a free counter.
    pub(super) fn take_counter(&self) -> Option<u16> {
        lock(&self.free).pop()
    }

    /// Ends a group with these lines, which its thread has stored before.
    pub(super) fn end(&self, counter: Option<u16>, lines: Vec<u64>) -> Group {
        let mut queue = lock(&self.queue);
        queue.last_serial += 1;
        let serial = queue.last_serial;
        if lines.is_empty() && !self.is_in_order {
            drop(queue);
            counter.into_iter().for_each(|counter| self.release(counter));
            return Group { serial, counter: None };
        }
        let group = Group { serial, counter };
        if let Some(counter) = counter {
            let counter = &self.counters[usize::from(counter)];
            counter.count.store(u32::try_from(lines.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
            counter.serial.store(serial, Ordering::Release);
        }
        queue.waiting.push_back(Ended { group, lines });
        group
    }

    /// An upper bound of the lines of a group that may not be durable. Acquires what [`complete`](Self::complete) has released.
    pub(super) fn count(&self, group: Group) -> u32 {
        if self.is_in_order && self.durable.load(Ordering::Acquire) >= group.serial {
            return 0;
        }
        let count = group.counter.map_or(0, |counter| {
            let counter = &self.counters[usize::from(counter)];
            let count = counter.count.load(Ordering::Acquire);
            // The counter is another group's once this one is durable.
            if counter.serial.load(Ordering::Acquire) == group.serial { count } else { 0 }
        });
        if self.is_in_order { count.max(1) } else { count }
    }

    /// The number of groups that wait.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.queue).waiting.len()
    }

    /// Takes all groups that wait, the oldest first. The caller [completes](Self::complete) them, or [puts them back](Self::put_back), before another call.
    pub(super) fn take(&self) -> VecDeque<Ended> {
        core::mem::take(&mut lock(&self.queue).waiting)
    }

    /// Puts groups back that could not be written back.
    pub(super) fn put_back(&self, mut groups: VecDeque<Ended>) {
        let mut queue = lock(&self.queue);
        groups.append(&mut queue.waiting);
        queue.waiting = groups;
    }

    /// Marks groups durable, and frees their counters.
    pub(super) fn complete(&self, groups: &VecDeque<Ended>) {
        for ended in groups {
            ended.group.counter.into_iter().for_each(|counter| self.release(counter));
            if self.is_in_order {
                self.durable.store(ended.group.serial, Ordering::Release);
            }
        }
    }

    /// Gives a counter back.
    fn release(&self, number: u16) {
        let counter = &self.counters[usize::from(number)];
        counter.serial.store(FREE, Ordering::Release);
        counter.count.store(0, Ordering::Release);
        lock(&self.free).push(number);
    }
}

/// A panic under a lock leaves nothing half done.
#[cfg(not(all(loom, test)))]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(loom, test))]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Interleavings of groups with a write-back, with the orders of the C++ memory model. Run by `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod interleaved {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// The stores of two groups, by line, and whether a write-back has seen them.
    struct Shared {
        groups: Groups,
        writer: Mutex<()>,
        stored: [AtomicBool; 2],
        written: [AtomicBool; 2],
    }

    impl Shared {
        fn write_back(&self) {
            let _one_at_a_time = lock(&self.writer);
            let groups = self.groups.take();
            for line in groups.iter().flat_map(|ended| &ended.lines) {
                let line = usize::try_from(*line).expect("a small number");
                assert!(self.stored[line].load(Ordering::Relaxed), "the flush misses a store");
                self.written[line].store(true, Ordering::Relaxed);
            }
            self.groups.complete(&groups);
        }

        /// Stores to a line, and ends the group.
        fn store(&self, line: usize) -> Group {
            let counter = self.groups.take_counter();
            self.stored[line].store(true, Ordering::Relaxed);
            self.groups.end(counter, vec![line as u64])
        }

        fn check(&self, line: usize, group: Group) {
            if self.groups.count(group) == 0 {
                assert!(self.written[line].load(Ordering::Relaxed), "the group is not durable");
            }
        }
    }

    fn explore(is_in_order: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new(Shared {
                groups: Groups::new(2, is_in_order),
                writer: Mutex::new(()),
                stored: [AtomicBool::new(false), AtomicBool::new(false)],
                written: [AtomicBool::new(false), AtomicBool::new(false)],
            });
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let group = other.store(0);
                other.check(0, group);
                other.write_back();
                assert_eq!(other.groups.count(group), 0);
                other.check(0, group);
            });
            let group = shared.store(1);
            shared.check(1, group);
            shared.write_back();
            assert_eq!(shared.groups.count(group), 0);
            shared.check(1, group);
            thread.join().expect("no thread panics");
            assert_eq!(shared.groups.waiting(), 0);
        });
    }

    #[test]
    fn loom_group_with_count_zero_is_written_back() {
        explore(false);
        explore(true);
    }
}
