//! A second process that does more than recover.

use super::quiet::{inherit_quiet, is_quiet};
use super::run::{Crash, Run, Verdict};
use super::session::catch;
use super::{Coverage, Explorer, Failure};
use crate::{Image, SimPmem};
use std::sync::Arc;

impl Explorer {
    /// As [`explore`](Self::explore) with [`kills`](Self::kills), of which there is at least one, where `second` is what runs after
    /// each kill of `first`, in place of the check: another process, that opens what the first one left, goes on with it and
    /// acknowledges what it did. `check` runs on everything that a crash of either process can leave. [`Crash::acked`] has what the
    /// first process had acknowledged when it was killed, and then what the second one had when the power failed.
    /// [`Run::acked`] tells the second process what was acknowledged before it.
    ///
    /// The first process is killed at its end, too. If processes may be killed more than once, `second` runs again after each kill.
    ///
    /// ```
    /// use pm_core::{FenceError, Pmem};
    /// use pm_crashsim::{Crash, Explorer, Image, Run};
    ///
    /// // A counter: each process adds one to what it finds.
    /// let count = |run: &Run<u64>| {
    ///     let value = run.pmem().load_u64(0) + 1;
    ///     run.pmem().store_u64(0, value);
    ///     run.pmem().persist(0, 8)?;
    ///     run.ack(value);
    ///     Ok::<(), FenceError>(())
    /// };
    /// let check = |crash: &Crash<u64>| match crash.acked().last() {
    ///     Some(&last) if crash.pmem().load_u64(0) < last => Err(format!("{last} was acknowledged")),
    ///     _ => Ok(()),
    /// };
    /// let coverage = Explorer::default().check_restarted(&Image::zeroed(64), count, count, check);
    /// assert!(coverage.is_exhaustive());
    /// assert_eq!(coverage.kills.legal, 4, "before the store, before the fence, before the acknowledgement, at the end");
    /// ```
    ///
    /// # Errors
    /// The first failure found.
    ///
    /// # Panics
    /// As [`explore`](Self::explore).
    pub fn explore_restarted<A: Clone + Sync, O: Verdict, P: Verdict, V: Verdict>(
        &self,
        image: &Image,
        first: impl Fn(&Run<A>) -> O,
        second: impl Fn(&Run<A>) -> P + Sync,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Result<Coverage, Box<Failure>> {
        let is_quiet = is_quiet();
        let restart = |pmem: Arc<SimPmem>, before: &[A]| {
            let run = Run::after(pmem, before.to_vec());
            let failed = inherit_quiet(is_quiet, || catch(|| second(&run).failure()));
            (run.take_acked(), failed.map(|message| format!("the process after the kill failed: {message}")))
        };
        let explorer = self.clone().kills(self.kills.max(1));
        explorer.explore_by(|explorer| explorer.search(image, &first, Some(&restart), &check))
    }

    /// As [`explore_restarted`](Self::explore_restarted), for tests: prints the coverage, and panics with the story of a
    /// failure.
    ///
    /// # Panics
    /// On the first failure found.
    #[track_caller]
    pub fn check_restarted<A: Clone + Sync, O: Verdict, P: Verdict, V: Verdict>(
        &self,
        image: &Image,
        first: impl Fn(&Run<A>) -> O,
        second: impl Fn(&Run<A>) -> P + Sync,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Coverage {
        self.told(self.explore_restarted(image, first, second, check))
    }
}
