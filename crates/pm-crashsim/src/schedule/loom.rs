//! Every schedule of a few threads, each crashed everywhere: [loom](::loom) runs the operation, the explorer crashes it. Needs the feature `loom`.
//!
//! Each access to the region, each flush, fence and acknowledgement is a point at which loom may switch to another thread, and it tries all orders of
//! them. The threads can share the region alone, or loom's own atomics and locks as well. The operation spawns its threads by
//! [`loom::thread`](::loom::thread) and joins them. Code whose threads share nothing but the region needs no `cfg(loom)`.
//!
//! Recoveries are remembered across schedules: an image that another schedule leaves after the same acknowledgements is not recovered from again.
//!
//! ```
//! use loom::model::Builder;
//! use pm_core::{FenceError, Pmem};
//! use pm_crashsim::{Crash, Explorer, Run};
//! use std::sync::Arc;
//!
//! // One thread publishes a word; another one that sees it must make it durable before it acts on it.
//! let operation = |run: &Arc<Run<()>>| {
//!     let writer = Arc::clone(run);
//!     let thread = loom::thread::spawn(move || writer.pmem().store_u64(0, 1));
//!     if run.pmem().load_u64(0) == 1 {
//!         run.pmem().persist(0, 8)?;
//!         run.pmem().store_u64(64, 7);
//!     }
//!     thread.join().expect("the thread only stores");
//!     Ok::<(), FenceError>(())
//! };
//! let check = |crash: &Crash<()>| {
//!     assert!(crash.pmem().load_u64(64) != 7 || crash.pmem().load_u64(0) == 1);
//! };
//! let explorer = Explorer::default();
//! let coverage = pm_crashsim::under_loom::explore(&explorer, &Builder::new(), 128, operation, check).unwrap();
//! assert!(coverage.is_complete && coverage.crashes.is_exhaustive());
//! ```
//!
//! # Limitations
//! Loom takes up to five threads, a few accesses each: the schedules are exponentially many. Threads run on small
//! stacks. A loop that waits for another thread must call [`loom::thread::yield_now`](::loom::thread::yield_now).
//! Accesses to the region are in one order for all threads, and order loom's own atomics too, as if each were an
//! acquire and a release: stores that two threads see in different orders show only in loom's atomics.

use super::exploration::{self, ScheduleCoverage, ScheduleFailure};
use crate::sim::Scheduler;
use crate::{Crash, Explorer, Image, Run, Verdict};
use ::loom::model::Builder;
use std::hash::Hash;
use std::panic::resume_unwind;
use std::sync::Arc;

/// Runs `operation` under every schedule, and `check` on everything that a crash of each can leave.
///
/// # Errors
/// The first failure found. A panic of the operation is one, and so is an error of loom, like a deadlock.
///
/// # Panics
/// When the explorer is to [replay](Explorer::replay) a crash, or the image's length is zero or not a multiple of 64.
pub fn explore<A, O, V>(
    explorer: &Explorer,
    builder: &Builder,
    image: impl Into<Image>,
    operation: impl Fn(&Arc<Run<A>>) -> O + Send + Sync + 'static,
    check: impl Fn(&Crash<'_, A>) -> V + Sync,
) -> Result<ScheduleCoverage, Box<ScheduleFailure>>
where
    A: Clone + Eq + Hash + Send + Sync + 'static,
    O: Verdict,
    V: Verdict,
{
    let mut coverage = exploration::explore(explorer, &image.into(), operation, check, |recorder| {
        builder.check(move || {
            if let Err(enough) = recorder.run(Scheduler::loom()) {
                // Loom stops only on a panic. No message is printed.
                resume_unwind(Box::new(enough));
            }
        });
    })?;
    coverage.is_complete = builder.preemption_bound.is_none()
        && builder.max_permutations.is_none()
        && builder.max_duration.is_none();
    Ok(coverage)
}
