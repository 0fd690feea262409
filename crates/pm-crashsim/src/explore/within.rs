//! Exploring inside of a check: what may a crash leave of that which comes after a recovery?

use super::run::{Crash, Run, Verdict};
use super::{Coverage, Explorer, Failure};
use crate::Lints;
use crate::faults::Faults;
use crate::sim::{SharedTouched, Touched, lock};

impl Explorer {
    /// Crashes `operation`, which starts from the image that `crash` left: by the same rules, once, and as bounded as
    /// the crashes of recoveries are. Without faults and lints, which are for what the check belongs to.
    ///
    /// Also returns what that depended on. Whoever skips this, because it is known how it goes, hands it to
    /// [`Crash::depends_on`], as is done here.
    pub(crate) fn explore_within<A, B: Sync, O: Verdict, V: Verdict>(
        &self,
        crash: &Crash<'_, A>,
        operation: &impl Fn(&Run<B>) -> O,
        check: &(impl Fn(&Crash<'_, B>) -> V + Sync),
    ) -> (Result<Coverage, Box<Failure>>, Touched) {
        let shared = SharedTouched::default();
        let explorer = Self {
            crashes: 1,
            kills: 0,
            choices_per_point: self.nested_choices_per_point,
            replay: None,
            shrink: false,
            repair: false,
            jobs: 1,
            lints: Lints::all_allowed(),
            faults: Faults::none(),
            touched: Some(SharedTouched::clone(&shared)),
            ..self.clone()
        };
        let explored =
            explorer.search(crash.pmem().start(), operation, None, check).map_err(|mut failure| {
                // The name of a crash says nothing without the image, which is this check's own.
                failure.replay = None;
                failure
            });
        let touched = core::mem::take(&mut *lock(&shared));
        crash.depends_on(&touched);
        (explored, touched)
    }
}
