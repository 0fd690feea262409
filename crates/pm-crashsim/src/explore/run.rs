//! The arguments and results of the closures under test, and their panics: caught, and silent where they are expected and repeat a known failure.

use super::memory::States;
use crate::outcome::{Complaint, Mismatch};
use crate::sim::Touched;
use crate::{Fault, SimPmem};
use core::fmt;
use core::hash::Hash;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

/// A run of the operation under test.
///
/// `A` is what the check has to know about completed operations: a value, a key, their number.
pub struct Run<A> {
    pmem: Arc<SimPmem>,
    acked: Mutex<Vec<A>>,
}

impl<A> Run<A> {
    /// A run of a process, after these acknowledgements of earlier processes.
    pub(crate) const fn new(pmem: Arc<SimPmem>, acked: Vec<A>) -> Self {
        Self { pmem, acked: Mutex::new(acked) }
    }

    /// The region. Clone the `Arc` for code that wants to own its seam.
    pub const fn pmem(&self) -> &Arc<SimPmem> {
        &self.pmem
    }

    /// The arguments of [`ack`](Self::ack) so far, in order, those of killed processes included.
    #[must_use]
    pub fn acked(&self) -> Vec<A>
    where
        A: Clone,
    {
        self.acked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Acknowledges an event to the check: an operation returned, and must survive from here on, or another one began, and may survive.
    /// Each call is a crash point, before and after.
    #[track_caller]
    pub fn ack(&self, what: A) {
        // Before the lock: under a scheduler all threads run on one system thread, so another one would deadlock on it.
        self.pmem.switch();
        // Under the lock, so that calls of two threads are recorded in the order in which they are stored.
        let mut acked = self.acked.lock().unwrap_or_else(PoisonError::into_inner);
        acked.push(what);
        self.pmem.ack();
    }

    /// The arguments of [`ack`](Self::ack), in order, taken out.
    pub(crate) fn take_acked(&self) -> Vec<A> {
        core::mem::take(&mut *self.acked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<A> fmt::Debug for Run<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("pmem", &self.pmem).finish_non_exhaustive()
    }
}

/// The machine after a crash: a region with the surviving contents, and the acknowledgements before the crash.
pub struct Crash<'a, A> {
    pmem: Arc<SimPmem>,
    acked: &'a [A],
    crashes: usize,
    mismatch: Mutex<Option<Mismatch>>,
    /// The states that other recoveries found; the history of this one, and how many crashes are tried inside it.
    states: Option<(Arc<States>, usize, usize)>,
    faults: &'a [Fault],
}

impl<'a, A> Crash<'a, A> {
    pub(super) const fn new(pmem: Arc<SimPmem>, acked: &'a [A], crashes: usize) -> Self {
        Self { pmem, acked, crashes, faults: &[], mismatch: Mutex::new(None), states: None }
    }

    /// The same on a medium with these faults.
    pub(super) fn with_faults(mut self, faults: &'a [Fault]) -> Self {
        self.faults = faults;
        self
    }

    /// The same as one of many of an exploration.
    pub(super) fn among(mut self, states: &Arc<States>, history: usize, inside: usize) -> Self {
        self.states = Some((Arc::clone(states), history, inside));
        self
    }

    /// The region. Clone the `Arc` for code that wants to own its seam.
    pub const fn pmem(&self) -> &Arc<SimPmem> {
        &self.pmem
    }

    /// The arguments of [`Run::ack`] before the crash, in order.
    #[must_use]
    pub const fn acked(&self) -> &'a [A] {
        self.acked
    }

    /// The number of crashes so far: 1 after a crash of the operation, 2 after another one of the recovery from it, 0 in a process
    /// that runs after a [kill](crate::Explorer::kills). For reports only: the result of the check must not depend on it, because an
    /// image that one crash can leave is not tried again after two.
    #[must_use]
    pub const fn crashes(&self) -> usize {
        self.crashes
    }

    /// The media faults, where [`Explorer::faults`](crate::Explorer::faults) asked for them: none, or some. A
    /// recovery may then lose what they hit, if it reports the loss.
    #[must_use]
    pub const fn faults(&self) -> &'a [Fault] {
        self.faults
    }

    /// Ends the recovery: later stores are the check's own (to test, for example, that the
    /// structure is still writable), and no crash in them is tried.
    pub fn recovered(&self) {
        self.pmem.stop_recording();
    }

    /// Adds lines of the image on which the result of the check depends.
    pub(crate) fn depends_on(&self, touched: &Touched) {
        self.pmem.note_touched(touched);
    }

    /// Whether recovery found this state for the first time after these acknowledgements, in this exploration. For a
    /// check that takes long to inspect a state: many images recover to few states, and it may skip the states that it has
    /// inspected. The result of the skipped part must depend on the state alone.
    ///
    /// When a failure is repeated and shrunk, every state counts as new.
    pub fn is_new_state(&self, state: &impl Hash) -> bool {
        let states = self.states.as_ref();
        states.is_none_or(|(states, history, inside)| states.note(*history, *inside, state))
    }

    /// Compares the state that recovery found with the allowed states. The report of a failure shows both, whatever the check does with the error.
    ///
    /// ```
    /// # use pm_core::{FenceError, Pmem};
    /// # use pm_crashsim::{Crash, Explorer, Image, Run};
    /// let operation = |run: &Run<u64>| {
    ///     run.pmem().store_u64(0, 7);
    ///     run.ack(7); // Too early: nothing was flushed.
    /// };
    /// let check = |crash: &Crash<u64>| {
    ///     let allowed = if crash.acked().is_empty() { vec![0, 7] } else { vec![7] };
    ///     crash.expect(crash.pmem().load_u64(0), allowed)
    /// };
    /// let failure = Explorer::default().explore(&Image::zeroed(64), operation, check).unwrap_err();
    /// let mismatch = failure.mismatch.as_ref().unwrap();
    /// assert_eq!((mismatch.found.as_str(), mismatch.allowed.as_slice()), ("0", &["7".to_owned()][..]));
    /// ```
    ///
    /// # Errors
    /// If `found` is none of `allowed`.
    pub fn expect<T: fmt::Debug + PartialEq>(
        &self,
        found: T,
        allowed: impl IntoIterator<Item = T>,
    ) -> Result<(), Mismatch> {
        let mut others = Vec::new();
        for state in allowed {
            if state == found {
                return Ok(());
            }
            let text = format!("{state:?}");
            if !others.contains(&text) {
                others.push(text);
            }
        }
        let mismatch = Mismatch { found: format!("{found:?}"), allowed: others };
        *self.mismatch.lock().unwrap_or_else(PoisonError::into_inner) = Some(mismatch.clone());
        Err(mismatch)
    }

    /// The complaint with that message, and with what [`expect`](Self::expect) found wrong.
    pub(super) fn complaint(&self, message: String) -> Complaint {
        let mismatch = self.mismatch.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Complaint { message, mismatch }
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

/// The result of a closure under test: nothing, or a `Result` whose error is a failure. A panic is a failure too.
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

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

static INSTALLED: Once = Once::new();

/// Whether the messages of this thread's panics are suppressed.
pub(super) fn is_quiet() -> bool {
    IS_QUIET.get()
}

/// Runs the closure as quietly as the thread on whose behalf it runs.
pub(super) fn inherit_quiet<T>(is_quiet: bool, closure: impl FnOnce() -> T) -> T {
    if is_quiet { quietly(closure) } else { closure() }
}

/// Runs the closure, and suppresses the messages of its panics on this thread.
///
/// Shrinking repeats a failure hundreds of times: the same message each time would bury the report.
pub(super) fn quietly<T>(closure: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_QUIET.set(self.0);
        }
    }
    if !thread::panicking() {
        INSTALLED.call_once(|| {
            let loud = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                // A thread that is being torn down no longer has this variable, and its panics are printed.
                if !IS_QUIET.try_with(Cell::get).unwrap_or(false) {
                    loud(info);
                }
            }));
        });
    }
    let _restore = Restore(IS_QUIET.replace(true));
    closure()
}

/// The complaint of a closure under test; a panic is a complaint too.
pub(crate) fn catch(closure: impl FnOnce() -> Option<String>) -> Option<String> {
    // A panic may leave the closure's captures half changed; the exploration ends there, and only the caller sees them again.
    catch_unwind(AssertUnwindSafe(closure)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Some(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    })
}
