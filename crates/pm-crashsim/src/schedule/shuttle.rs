//! Random schedules of more threads than can be exhausted, each crashed everywhere: [shuttle](::shuttle) runs the
//! operation, the explorer crashes it. Needs the feature `shuttle`.
//!
//! Each access to the region, each flush, fence and acknowledgement is a point at which shuttle may switch to another thread. The operation spawns
//! its threads by [`shuttle::thread`](::shuttle::thread) and joins them; they share the region, or shuttle's own atomics and locks. The scheduler
//! selects the schedules: [`PctScheduler`](::shuttle::scheduler::PctScheduler) finds a bug that needs few switches with a probability that it can
//! state, [`RandomScheduler`](::shuttle::scheduler::RandomScheduler) treats all switches alike. Give them a seed, so that a run can be repeated.
//!
//! ```
//! use pm_core::{FenceError, Pmem};
//! use pm_crashsim::{Crash, Explorer, Run};
//! use shuttle::scheduler::PctScheduler;
//! use std::sync::Arc;
//!
//! // Three threads count in words of their own, each durable before it is acknowledged.
//! let operation = |run: &Arc<Run<u64>>| {
//!     let count = |word: u64| {
//!         let run = Arc::clone(run);
//!         shuttle::thread::spawn(move || {
//!             run.pmem().store_u64(64 * word, 1);
//!             run.pmem().persist(64 * word, 8)?;
//!             run.ack(word);
//!             Ok::<(), FenceError>(())
//!         })
//!     };
//!     let threads = [0, 1, 2].map(count);
//!     threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
//! };
//! let check = |crash: &Crash<u64>| {
//!     assert!(crash.acked().iter().all(|word| crash.pmem().load_u64(64 * word) == 1));
//! };
//! let scheduler = PctScheduler::new_from_seed(7, 3, 100);
//! let (explorer, config) = (Explorer::default(), shuttle::Config::new());
//! let coverage =
//!     pm_crashsim::under_shuttle::explore(&explorer, scheduler, config, 192, operation, check).unwrap();
//! assert_eq!(coverage.schedules, 100);
//! ```
//!
//! # Limitations
//! Not all schedules are tried. Threads run on small stacks ([`Config::stack_size`](::shuttle::Config::stack_size)).

use super::exploration::{self, ScheduleCoverage, ScheduleFailure};
use crate::{Crash, Explorer, Image, Run, Verdict, sim};
use ::shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use ::shuttle::{Config, Runner};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `operation` under each schedule that `scheduler` makes, and `check` on everything that a crash of each can leave.
///
/// # Errors
/// The first failure found. A panic of the operation is one, and so is an error of shuttle, like a deadlock.
///
/// # Panics
/// When the explorer is to [replay](Explorer::replay) a crash, or the image's length is zero or not a multiple of 64.
pub fn explore<A, O, V>(
    explorer: &Explorer,
    scheduler: impl Scheduler + Send + 'static,
    config: Config,
    image: impl Into<Image>,
    operation: impl Fn(&Arc<Run<A>>) -> O + Send + Sync + 'static,
    check: impl Fn(&Crash<'_, A>) -> V + Sync,
) -> Result<ScheduleCoverage, Box<ScheduleFailure>>
where
    A: Clone + Eq + Hash + Send + Sync + 'static,
    O: Verdict,
    V: Verdict,
{
    exploration::explore(explorer, &image.into(), operation, check, |recorder| {
        let is_enough = Arc::new(AtomicBool::new(false));
        let scheduler = UntilEnough { scheduler, is_enough: Arc::clone(&is_enough) };
        Runner::new(scheduler, config).run(move || {
            let ended = recorder.run(sim::Scheduler::shuttle());
            is_enough.store(ended.is_err(), Ordering::Relaxed);
        });
    })
}

/// A scheduler that stops when no more schedules are needed.
#[derive(Debug)]
struct UntilEnough<S> {
    scheduler: S,
    is_enough: Arc<AtomicBool>,
}

impl<S: Scheduler> Scheduler for UntilEnough<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.is_enough.load(Ordering::Relaxed) { None } else { self.scheduler.new_execution() }
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        self.scheduler.next_task(runnable, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.scheduler.next_u64()
    }
}
