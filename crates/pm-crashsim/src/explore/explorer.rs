//! What to explore, and how far.

use super::Coverage;
use super::failure::Failure;
use super::quiet::quietly;
use super::replay::ReplayId;
use super::run::{Complaint, Crash, Run, Verdict};
use super::session::{Session, catch};
use super::shrink::Shrinker;
use crate::edits::Edits;
use crate::model::{Model, Rules};
use crate::sim::Recording;
use crate::{Image, SimPmem, Site};
use std::sync::Arc;

/// Crashes an operation everywhere, and looks at what recovery makes of it.
///
/// The operation is run once, on a recording region. Then, for each point at which a crash can leave something
/// new (before each fence or exchange that makes stores durable, around each [`Run::ack`], at the end), each
/// legal choice of surviving stores becomes an image; the check runs on each, recovers from it and says whether
/// all is well. What recovery stored is recorded too, crashed at each of its own points, and recovered again.
///
/// Operation and check must do the same whenever they are run on the same bytes: take no time, no randomness
/// without a fixed seed. Threads started by the operation are fine if they are joined in it.
#[derive(Clone, Debug)]
pub struct Explorer {
    pub(super) rules: Rules,
    pub(super) crashes: usize,
    pub(super) choices_per_point: u64,
    pub(super) nested_choices_per_point: u64,
    pub(super) seed: u64,
    pub(super) edits: Edits,
    pub(super) replay: Option<ReplayId>,
    pub(super) shrink: bool,
    pub(super) repair: bool,
}

impl Default for Explorer {
    fn default() -> Self {
        Self::new(Model::default())
    }
}

impl Explorer {
    /// Explores under `model`: two crashes deep, with up to 4,096 choices at each point of the operation and 256 at
    /// each of a recovery.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self {
            rules: Rules { model, ..Rules::default() },
            crashes: 2,
            choices_per_point: 4096,
            nested_choices_per_point: 256,
            seed: 0,
            edits: Edits::default(),
            replay: None,
            shrink: true,
            repair: true,
        }
    }

    /// How many crashes may follow each other: 1 leaves recovery undisturbed, 2 crashes it too. At points with more
    /// choices than the bound, only some of the recoveries are crashed.
    ///
    /// # Panics
    /// For zero.
    #[must_use]
    pub const fn crashes(mut self, crashes: usize) -> Self {
        assert!(crashes > 0, "an exploration without crashes explores nothing");
        self.crashes = crashes;
        self
    }

    /// Up to how many choices are tried at one point of the operation. With more legal ones, these are tried:
    /// nothing survives, everything, each store with what must precede it, all but each store and what must
    /// follow it, then random ones.
    ///
    /// # Panics
    /// For zero.
    #[must_use]
    pub const fn choices_per_point(mut self, bound: u64) -> Self {
        assert!(bound > 0, "at least one choice must be tried");
        self.choices_per_point = bound;
        self
    }

    /// The same for the points of recoveries.
    ///
    /// # Panics
    /// For zero.
    #[must_use]
    pub const fn nested_choices_per_point(mut self, bound: u64) -> Self {
        assert!(bound > 0, "at least one choice must be tried");
        self.nested_choices_per_point = bound;
        self
    }

    /// Where the random choices begin. 0 unless told.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether an acknowledgement may overtake the fence before it. By the letter of the manual `sfence` only
    /// orders, and does not wait; off unless told, for no known memory controller shows the difference.
    #[must_use]
    pub const fn strict_ack(mut self, strict: bool) -> Self {
        self.rules.strict_ack = strict;
        self
    }

    /// Whether a successful compare-exchange also fences, as on x86; on unless told. Turn it off for code that
    /// shall not rely on it.
    #[must_use]
    pub const fn exchange_fences(mut self, fences: bool) -> Self {
        self.rules.exchange_fences = fences;
        self
    }

    /// Makes flushes or fences of this site do nothing, in the operation and in recoveries.
    #[must_use]
    pub fn suppress(mut self, site: &Site) -> Self {
        self.edits.suppressed.insert(site.clone());
        self
    }

    /// Whether a failure is shrunk before it is returned: to the fewest lost lines, the longest kept prefixes, and the
    /// fewest crashes with which the check still fails. On unless told; it runs the check up to 1,000 times more. A
    /// replay is never shrunk, so that in it the check runs once for each crash.
    #[must_use]
    pub const fn shrink(mut self, shrink: bool) -> Self {
        self.shrink = shrink;
        self
    }

    /// Whether one flush or fence is looked for that would repair a failure. On unless told; it runs the operation
    /// up to 24 times more, and explores each of these runs with smaller bounds. A replay looks for none.
    #[must_use]
    pub const fn repair(mut self, repair: bool) -> Self {
        self.repair = repair;
        self
    }

    /// Repeats only the crashes that a failure named, with operation, check and bounds as they were then. If the
    /// run has no such crash any more, that is a failure too.
    ///
    /// # Panics
    /// When `id` is no such name, or one from another model.
    #[must_use]
    pub fn replay(mut self, id: &str) -> Self {
        let parsed = ReplayId::parse(id).unwrap_or_else(|| panic!("{id:?} names no crash"));
        assert_eq!(parsed.model, self.rules.model, "{id:?} was found under another model");
        self.seed = parsed.seed;
        self.replay = Some(parsed);
        self
    }

    /// Runs `operation` on a region that starts as `image`, and `check` on everything that a crash of it can leave.
    ///
    /// `check` gets the crashed region: it recovers, compares with what was acknowledged, and fails by a panic or
    /// an error.
    ///
    /// # Errors
    /// The first failure found.
    pub fn explore<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: impl Fn(&Run<A>) -> O,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Result<Coverage, Box<Failure>> {
        self.search(image, &operation, &check).map_err(|mut failure| {
            if self.repair && self.replay.is_none() {
                let passes = |explorer: &Self| explorer.search(image, &operation, &check).is_ok();
                failure.repair = quietly(|| self.find_repair(&failure, passes));
            }
            failure
        })
    }

    /// Explores, and shrinks the failure that it finds.
    pub(super) fn search<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: &impl Fn(&Run<A>) -> O,
        check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
    ) -> Result<Coverage, Box<Failure>> {
        let pmem = Arc::new(SimPmem::recorded(image, self.rules.model, Recording::Writes, &self.edits));
        let run = Run::new(Arc::clone(&pmem));
        let failed = catch(|| operation(&run).failure());
        let mut coverage = Coverage::default();
        coverage.sites.extend(pmem.sites());
        if let Some(message) = failed {
            return Err(Box::new(Failure::new(format!("the operation itself failed: {message}"), coverage)));
        }
        let trace = pmem.take_trace();
        let acked = run.into_acked();
        let check = |crash: &Crash<'_, A>| {
            let failed = catch(|| check(crash).failure());
            failed.map(|message| Complaint { message, mismatch: crash.mismatch() })
        };
        Session::new(self, &acked, &check, coverage).explore(image, &trace).map_err(|mut failure| {
            if self.shrink && self.replay.is_none() {
                quietly(|| Shrinker::new(self, &acked, &check).shrink(&mut failure));
            }
            failure
        })
    }

    /// As [`explore`](Self::explore), for tests: prints the coverage, and panics with the story of a failure.
    ///
    /// # Panics
    /// On the first failure found.
    #[track_caller]
    pub fn check<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: impl Fn(&Run<A>) -> O,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Coverage {
        match self.explore(image, operation, check) {
            Ok(coverage) => {
                println!("{}: {coverage}", self.rules.model);
                coverage
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}
