//! What the test's closures get and give.

use crate::{Fault, SimPmem};
use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A run of the operation under test.
///
/// `A` is whatever the check has to know about operations that had returned: a value, a key, the number of them.
pub struct Run<A> {
    pmem: Arc<SimPmem>,
    acked: Mutex<Vec<A>>,
}

impl<A> Run<A> {
    pub(crate) const fn new(pmem: Arc<SimPmem>) -> Self {
        Self { pmem, acked: Mutex::new(Vec::new()) }
    }

    /// The region. Clone the `Arc` for code that wants to own its seam.
    pub const fn pmem(&self) -> &Arc<SimPmem> {
        &self.pmem
    }

    /// Tells the check that something had happened from here on: an operation returned, and must now survive,
    /// or another one began, and may. Each call is a place to crash before and after.
    #[track_caller]
    pub fn ack(&self, what: A) {
        // Before the lock: other threads of a scheduler run on this very thread, and could not take it.
        self.pmem.switch();
        // Under the lock, so that two threads' calls are recorded in the order in which they are kept.
        let mut acked = self.acked.lock().unwrap_or_else(PoisonError::into_inner);
        acked.push(what);
        self.pmem.mark_ack();
    }

    /// What was passed to [`ack`](Self::ack), in order, taken out.
    pub(crate) fn take_acked(&self) -> Vec<A> {
        core::mem::take(&mut *self.acked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<A> fmt::Debug for Run<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("pmem", &self.pmem).finish_non_exhaustive()
    }
}

/// The machine after a crash: a region with what the crash left, and what had been acknowledged before.
pub struct Crash<'a, A> {
    pmem: Arc<SimPmem>,
    acked: &'a [A],
    crashes: usize,
    faults: &'a [Fault],
}

impl<'a, A> Crash<'a, A> {
    pub(super) const fn new(pmem: Arc<SimPmem>, acked: &'a [A], crashes: usize) -> Self {
        Self { pmem, acked, crashes, faults: &[] }
    }

    pub(super) fn with_faults(self, faults: &'a [Fault]) -> Self {
        Self { pmem: self.pmem, acked: self.acked, crashes: self.crashes, faults }
    }

    /// The region. Clone the `Arc` for code that wants to own its seam.
    pub const fn pmem(&self) -> &Arc<SimPmem> {
        &self.pmem
    }

    /// What was passed to [`Run::ack`] before the crash, in order.
    #[must_use]
    pub const fn acked(&self) -> &'a [A] {
        self.acked
    }

    /// How many crashes led here: 1 after one of the operation, 2 after another one of the recovery from it.
    #[must_use]
    pub const fn crashes(&self) -> usize {
        self.crashes
    }

    /// What the medium did besides, where [`Explorer::faults`](crate::Explorer::faults) asked for it: nothing, or some faults. A
    /// recovery may then lose what they hit, if it says so.
    #[must_use]
    pub const fn faults(&self) -> &'a [Fault] {
        self.faults
    }

    /// Tells that recovery is done: what is stored from here on is the check's own (to see, say, that the
    /// structure can be written again), and no crash in it is tried.
    pub fn recovered(&self) {
        self.pmem.stop_recording();
    }
}

impl<A> fmt::Debug for Crash<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crash")
            .field("pmem", &self.pmem)
            .field("acked", &self.acked.len())
            .field("crashes", &self.crashes)
            .field("faults", &self.faults)
            .finish()
    }
}

/// What a closure under test returns: nothing, or a `Result` whose error is a failure. A panic is one too.
pub trait Verdict {
    /// What went wrong, if something did.
    fn failure(self) -> Option<String>;
}

impl Verdict for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: fmt::Display> Verdict for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}
