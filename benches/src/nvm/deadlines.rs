//! A thread that completes each of many requests when it is due.

use rustix::thread::set_current_timer_slack;
use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The last part of a wait, in which the thread spins: sleeping ends so much later than asked for.
const SPIN: Duration = Duration::from_micros(60);

/// Requests with their deadlines. Dropping it completes what is left, each when it is due.
#[derive(Debug)]
pub struct Deadlines<T> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
    /// The number of requests so far: a spinning thread sees without the lock that another was added.
    count: AtomicU64,
}

#[derive(Debug)]
struct Waiting<T> {
    due: BinaryHeap<Due<T>>,
    is_ended: bool,
}

#[derive(Debug)]
struct Due<T> {
    at: Instant,
    number: u64,
    request: T,
}

/// The greatest is the earliest, and of several the first that was added.
impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> Order {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl<T> Eq for Due<T> {}

impl<T: Send + 'static> Deadlines<T> {
    /// Starts the thread, which calls `complete` for each request.
    pub fn new(complete: impl Fn(T) + Send + 'static) -> std::io::Result<Self> {
        let waiting = Mutex::new(Waiting { due: BinaryHeap::new(), is_ended: false });
        let shared = Arc::new(Shared { waiting, changed: Condvar::new(), count: AtomicU64::new(0) });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("deadlines".into()).spawn(move || {
            // The kernel may otherwise let a sleep take 50 us longer, which would then be too late by that.
            set_current_timer_slack(NonZero::new(1)).ok();
            while let Some(request) = of_thread.next() {
                complete(request);
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Adds a request.
    pub fn push(&self, at: Instant, request: T) {
        let mut waiting = self.shared.lock();
        let number = self.shared.count.fetch_add(1, Ordering::Relaxed);
        let is_first = waiting.due.peek().is_none_or(|first| at < first.at);
        waiting.due.push(Due { at, number, request });
        drop(waiting);
        if is_first {
            self.shared.changed.notify_one();
        }
    }
}

impl<T> Shared<T> {
    /// Waits until a request is due. `None` at the end.
    fn next(&self) -> Option<T> {
        let mut waiting = self.lock();
        loop {
            let now = Instant::now();
            let Some(first) = waiting.due.peek() else {
                if waiting.is_ended {
                    return None;
                }
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let at = first.at;
            if at <= now {
                return waiting.due.pop().map(|due| due.request);
            }
            let left = at - now;
            if left > SPIN {
                let slept = self.changed.wait_timeout(waiting, left.saturating_sub(SPIN));
                waiting = slept.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                let count = self.count.load(Ordering::Relaxed);
                drop(waiting);
                while Instant::now() < at && self.count.load(Ordering::Relaxed) == count {
                    std::hint::spin_loop();
                }
                waiting = self.lock();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Deadlines<T> {
    fn drop(&mut self) {
        self.shared.lock().is_ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("completing a request panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn requests_complete_in_order_of_deadlines_and_never_early() {
        let (sender, receiver) = mpsc::channel();
        let deadlines = Deadlines::new(move |(number, due): (u32, Instant)| {
            sender.send((number, Instant::now() >= due)).unwrap();
        });
        let deadlines = deadlines.unwrap();
        let begin = Instant::now() + Duration::from_millis(20);
        for (number, us) in [(3, 900), (1, 0), (4, 5000), (2, 30)] {
            let due = begin + Duration::from_micros(us);
            deadlines.push(due, (number, due));
        }
        drop(deadlines);
        let completed: Vec<(u32, bool)> = receiver.iter().collect();
        assert_eq!(completed, [(1, true), (2, true), (3, true), (4, true)]);
    }

    #[test]
    fn request_that_is_due_before_one_that_is_waited_for_is_not_held_up() {
        let (sender, receiver) = mpsc::channel();
        let deadlines = Deadlines::new(move |number: u32| sender.send(number).unwrap()).unwrap();
        deadlines.push(Instant::now() + Duration::from_secs(600), 2);
        std::thread::sleep(Duration::from_millis(5));
        deadlines.push(Instant::now(), 1);
        assert_eq!(receiver.recv_timeout(Duration::from_secs(300)), Ok(1));
        // The other one would be waited for.
        std::mem::forget(deadlines);
    }
}
