//! Calls that may take long, on a thread of their own: the threads that serve the kernel go on with other calls.

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

type Call = Box<dyn FnOnce() + Send>;

/// The thread of long calls, one after the other. Dropping it waits for those that were begun.
pub(crate) struct LongCalls {
    /// `None` when there are no more.
    queue: Option<Sender<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for LongCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongCalls").finish_non_exhaustive()
    }
}

impl Default for LongCalls {
    fn default() -> Self {
        let (queue, calls) = channel::<Call>();
        let thread = thread::spawn(move || calls.into_iter().for_each(|call| call()));
        Self { queue: Some(queue), thread: Some(thread) }
    }
}

impl LongCalls {
    /// Runs a call on the thread. It answers the kernel itself.
    pub(crate) fn run(&self, call: impl FnOnce() + Send + 'static) {
        if let Some(queue) = &self.queue
            && let Err(refused) = queue.send(Box::new(call))
        {
            // The thread has ended, which it does not: a panic ends the server.
            (refused.0)();
        }
    }
}

impl Drop for LongCalls {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn caller_does_not_wait_and_the_end_does() {
        let (open, gate) = channel::<()>();
        let done = Arc::new(AtomicU64::new(0));
        let calls = LongCalls::default();
        calls.run(move || gate.recv().unwrap());
        for _ in 0..3 {
            let done = Arc::clone(&done);
            calls.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(done.load(Ordering::Relaxed), 0);
        open.send(()).unwrap();
        drop(calls);
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }
}
