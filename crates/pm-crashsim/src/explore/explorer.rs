//! What to explore, and how far.

use super::replay::ReplayId;
use crate::faults::Faults;
use crate::model::{Model, Rules};
use crate::sim::{Recording, SharedTouched};
use crate::site::Edits;
use crate::{Image, Lints, SimPmem, Site};
use std::time::Duration;

/// Crashes an operation everywhere, and looks at what recovery makes of it.
///
/// The operation is run once, on a recording region. Then, for each point at which a crash can leave something
/// new (before each fence or exchange that makes stores durable, around each [`Run::ack`](crate::Run::ack), at the end), each
/// legal choice of surviving stores becomes an image; the check runs on each, recovers from it and says whether
/// all is well. What recovery stored is recorded too, crashed at each of its own points, and recovered again.
///
/// Operation and check must do the same whenever they are run on the same bytes: take no time, no randomness
/// without a fixed seed. Threads started by the operation are fine if they are joined in it.
#[derive(Clone, Debug)]
pub struct Explorer {
    pub(super) rules: Rules,
    pub(super) crashes: usize,
    pub(super) kills: usize,
    pub(super) choices_per_point: u64,
    pub(super) nested_choices_per_point: u64,
    pub(super) recoveries: u64,
    pub(super) time_per_check: Duration,
    pub(super) seed: u64,
    pub(super) edits: Edits,
    pub(super) replay: Option<ReplayId>,
    pub(super) shrink: bool,
    pub(super) repair: bool,
    pub(super) reduce: bool,
    pub(super) jobs: usize,
    pub(super) accesses_per_check: u64,
    pub(super) lints: Lints,
    pub(super) faults: Faults,
    /// Where every run notes what it touches, for an exploration inside of a check.
    pub(super) touched: Option<SharedTouched>,
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
            kills: 0,
            choices_per_point: 4096,
            nested_choices_per_point: 256,
            recoveries: u64::MAX,
            time_per_check: Duration::from_secs(60),
            seed: 0,
            edits: Edits::default(),
            replay: None,
            shrink: true,
            repair: true,
            reduce: true,
            jobs: 1,
            accesses_per_check: 1 << 24,
            lints: Lints::all_allowed(),
            faults: Faults::none(),
            touched: None,
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

    /// How many times a process may be killed before the power fails; 0 unless told. A kill keeps the caches: the next process
    /// sees all that was stored, durable or not, and must not rely on what it has not flushed and fenced itself, for a
    /// flush of the killed process that was not fenced promises nothing.
    ///
    /// With 1, the operation is also killed before each of its events and at the end. Then the check runs as a second process:
    /// its recovery must succeed at once, as after a crash ([`Crash::crashes`](crate::Crash::crashes) is 0). What it did is
    /// crashed everywhere in turn, to the depth of [`crashes`](Self::crashes), and the check runs again on what that leaves. What
    /// the killed process had acknowledged stays acknowledged. With 2, the second process is killed as well, and so on. For a
    /// second process that does more than recover there is [`explore_restarted`](Self::explore_restarted).
    ///
    /// Kills that leave the same contents and the same durable state are one, and so are those that differ only where neither
    /// the second process nor a recovery looks. [`Coverage::kills`](crate::Coverage::kills) and
    /// [`Coverage::after_kill`](crate::Coverage::after_kill) say how many of how many. Recoveries from a crash are not killed: for
    /// that, make the recovery the operation.
    ///
    /// ```
    /// use pm_core::Pmem;
    /// use pm_crashsim::{Crash, Explorer, Image, Run};
    ///
    /// // A log of one entry at 64, and a word at 0 that says how many entries were used up.
    /// let operation = |run: &Run<()>| {
    ///     run.pmem().store_u64(0, 1);
    ///     run.pmem().persist(0, 8)
    /// };
    /// // Recovery finds the entry used up, and writes over it.
    /// let check = |flushes: bool| {
    ///     move |crash: &Crash<()>| {
    ///         let pmem = crash.pmem();
    ///         if flushes {
    ///             pmem.persist(0, 8).unwrap();
    ///         }
    ///         match (pmem.load_u64(0), pmem.load_u64(64)) {
    ///             (0, 0) => panic!("the entry was lost, and not used"),
    ///             (0, _) => {}
    ///             (_, _) => {
    ///                 pmem.store_u64(64, 0);
    ///                 pmem.persist(64, 8).unwrap();
    ///             }
    ///         }
    ///     }
    /// };
    /// let start = pm_crashsim::SimPmem::new(4096);
    /// start.store_u64(64, 7);
    /// let start = start.to_image();
    /// let explorer = Explorer::default();
    /// assert!(explorer.explore(&start, operation, check(false)).is_ok(), "with no kill, the word is durable");
    /// assert!(explorer.clone().kills(1).explore(&start, operation, check(false)).is_err());
    /// assert!(explorer.kills(1).explore(&start, operation, check(true)).is_ok());
    /// ```
    #[must_use]
    pub const fn kills(mut self, kills: usize) -> Self {
        self.kills = kills;
        self
    }

    /// Up to how many choices are tried at one point of the operation. Where there are more legal ones, and recovery reads
    /// so much that they cannot be told to be alike, these are tried: nothing survives, everything, one line alone, all
    /// but one line, one store alone, all but one store, all but two lines; then random ones. To find out takes up to
    /// as many recoveries again, and so does crashing recoveries in turn.
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

    /// After how many recoveries an exploration stops where it is, if not earlier; it does not unless told. As it goes round
    /// points at even distances, and then all points, with a few telling choices before it tries more of them at any, what is left out
    /// is what tells least. The
    /// [`Coverage`](crate::Coverage) then says how many of how many, and is not exhaustive. For runs of thousands of stores.
    /// With several [jobs](Self::jobs), each piece of the run has an even share.
    ///
    /// # Panics
    /// For zero.
    #[must_use]
    pub const fn recoveries(mut self, bound: u64) -> Self {
        assert!(bound > 0, "at least one recovery must be run");
        self.recoveries = bound;
        self
    }

    /// How long a check may take, so that a recovery that hangs, or takes far too long, is a failure with a name: 60 seconds unless
    /// told. Looked at while the check accesses the region, and when it returns. A check that hangs without any access is not
    /// stopped.
    #[must_use]
    pub const fn time_per_check(mut self, limit: Duration) -> Self {
        self.time_per_check = limit;
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

    /// Whether what recovery reads directs the search; on unless told. A choice that differs from one that was tried only
    /// where recovery does not look is then not tried again, for it would show nothing new. Turn it off for a check that
    /// looks at more than the region, or to see what the difference is.
    #[must_use]
    pub const fn reduce(mut self, reduce: bool) -> Self {
        self.reduce = reduce;
        self
    }

    /// On how many threads to explore; 1 unless told, as tests run side by side already. The threads do not share what
    /// they learn, so that the number of recoveries grows with them.
    ///
    /// # Panics
    /// For zero.
    #[must_use]
    pub const fn jobs(mut self, jobs: usize) -> Self {
        assert!(jobs > 0, "somebody has to do the work");
        self.jobs = jobs;
        self
    }

    /// How often a check may access the region, so that a recovery that never ends is a failure, and not a hung test. 16
    /// million times unless told.
    #[must_use]
    pub const fn accesses_per_check(mut self, bound: u64) -> Self {
        self.accesses_per_check = bound;
        self
    }

    /// Makes flushes or fences of this site do nothing, in the operation and in recoveries.
    #[must_use]
    pub fn suppress(mut self, site: &Site) -> Self {
        self.edits.suppressed.insert(site.clone());
        self
    }

    /// Whether a failure is shrunk before it is returned: to the fewest crashes, the fewest lost lines and the longest
    /// kept prefixes with which the check still fails. On unless told; it runs the check up to 1,000 times more. A
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

    /// Looks for misuse of flushes and fences in what the operation and the recoveries did, too. Nothing unless told.
    ///
    /// What is denied fails the exploration, before anything is crashed; what is only warned of is in
    /// [`Coverage::findings`](crate::Coverage::findings), and [`check`](Self::check) prints it, to be seen with `--nocapture`.
    /// Recoveries are looked at as far as they are [crashed](Self::crashes), and may flush and fence in vain.
    #[must_use]
    pub fn lints(mut self, lints: Lints) -> Self {
        self.lints = lints;
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
        self.replay = Some(parsed);
        self
    }

    /// The model explored under.
    #[must_use]
    pub const fn model(&self) -> Model {
        self.rules.model
    }

    /// Whether only the crashes of one name are tried.
    pub(crate) const fn is_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// Where random choices begin.
    pub(crate) const fn first_seed(&self) -> u64 {
        self.seed
    }

    /// Whether processes are killed.
    pub(crate) const fn is_killing(&self) -> bool {
        self.kills > 0
    }

    /// A region whose run is recorded for this explorer.
    pub(crate) fn recorded(&self, image: &Image) -> SimPmem {
        let recording = match self.lints.needs_loads() {
            true => Recording::Loads,
            false if self.rules.strict_ack => Recording::Observed,
            false => Recording::Writes,
        };
        let pmem = SimPmem::recorded(image, self.rules.model, recording, &self.edits);
        if let Some(touched) = &self.touched {
            pmem.report_to(touched);
        }
        pmem
    }
}
