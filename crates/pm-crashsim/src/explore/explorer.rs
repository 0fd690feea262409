//! The explorer: what to explore, how far, and the ways to start.

use super::memory::{History, Memory};
use super::repair::find_repair;
use super::run::{Crash, Run, Verdict, catch, inherit_quiet, is_quiet, quietly};
use super::search::{explore_record, search};
use super::settings::Settings;
use crate::faults::Faults;
use crate::model::Model;
use crate::outcome::{Coverage, Explored, Failure, REPLAY_VARIABLE, ReplayId};
use crate::setters::setters;
use crate::sim::{Recording, SharedTouched, SimPmem, Touched, lock};
use crate::time_budget::TIME_VARIABLE;
use crate::trace::Trace;
use crate::{Image, Injection, Lints, Site, TraceFile, site};
use std::sync::Arc;
use std::time::Duration;

/// Crashes an operation everywhere, and checks what its recovery makes of each crash.
///
/// The operation runs once, on a recording region. A crash point is a place at which a crash can leave something new: before each
/// fence or exchange that makes stores durable, around each [`Run::ack`](crate::Run::ack), and at the end. At each point, each legal
/// choice of surviving stores is an image; the check recovers from it and judges the result. The stores of the
/// recovery are recorded too, crashed at each of its own points, and recovered again.
///
/// Operation and check must be deterministic: the same on the same bytes, without clocks or unseeded random numbers. The operation
/// may start threads if it joins them.
#[derive(Clone, Debug)]
pub struct Explorer(Settings);

impl Default for Explorer {
    fn default() -> Self {
        Self::new(Model::default())
    }
}

impl Explorer {
    /// Explores under `model`, two crashes deep, with up to 4,096 choices at each point of the operation and 256 at each point of a recovery.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self(Settings::new(model))
    }

    /// Explores under the model of the file's run, with its reading of the manuals.
    #[must_use]
    pub fn of(file: &TraceFile) -> Self {
        Self(Settings { rules: *file.rules(), ..Settings::new(file.model()) })
    }

    setters! {
        /// The number of crashes that may follow each other: 1 leaves recovery undisturbed, 2 also crashes the recovery. At points with
        /// more choices than the bound, only some of the recoveries are crashed.
        crashes(crashes: usize) => 0.crashes, "an exploration needs at least one crash";

        /// How many times a process may be killed before the power fails; 0 by default. A kill keeps the caches: the next process
        /// sees every store, durable or not, and must not rely on data that it has not itself flushed and fenced, because an unfenced
        /// flush of the killed process promises nothing.
        ///
        /// With 1, the operation is also killed before each of its events and at the end. Then the check runs as a second process:
        /// its recovery must succeed at once, as after a crash ([`Crash::crashes`](crate::Crash::crashes) is 0). Its run is
        /// crashed everywhere in turn, to the depth of [`crashes`](Self::crashes), and the check runs again on each result. The
        /// acknowledgements of the killed process stay valid. With 2, the second process is killed as well, and so on. For a
        /// second process that does more than recover there is [`explore_restarted`](Self::explore_restarted).
        ///
        /// Kills that leave the same contents and the same durable state count as one, as do kills that differ only where neither the second process
        /// nor a recovery reads. [`Coverage::kills`](crate::Coverage::kills) and [`Coverage::after_kill`](crate::Coverage::after_kill) have the
        /// counts. Recoveries from a crash are not killed: for that, make the recovery the operation.
        ///
        /// ```
        /// use pm_core::Pmem;
        /// use pm_crashsim::{Crash, Explorer, Image, Run};
        ///
        /// // A log of one entry at 64, and at 0 the number of entries that are used up.
        /// let operation = |run: &Run<()>| {
        ///     run.pmem().store_u64(0, 1);
        ///     run.pmem().persist(0, 8)
        /// };
        /// // Recovery overwrites an entry that is used up.
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
        kills(kills: usize) => 0.kills;

        /// The number of choices tried at one point of the operation. If more are legal, and recovery reads too much to tell that they are alike, a
        /// selection is tried: nothing survives, everything, one line alone, all but one line, one store alone, all but one store, all but two lines;
        /// then random choices. Finding this out takes up to as many recoveries again, and so does crashing recoveries in turn.
        choices_per_point(choices_per_point: u64) => 0.choices_per_point, "at least one choice must be tried";

        /// The same for the points of recoveries.
        nested_choices_per_point(nested_choices_per_point: u64) => 0.nested_choices_per_point, "at least one choice must be tried";

        /// The number of recoveries after which an exploration stops; unbounded by default. For runs of thousands of stores. The
        /// exploration visits points at even distances, then all points, each with a few telling choices, before it tries more at any
        /// point; so the bound cuts off the least telling choices. The [`Coverage`](crate::Coverage) then has the counts, and is not
        /// exhaustive. With several [jobs](Self::jobs), each piece of the run has an even share.
        recoveries(recoveries: u64) => 0.recoveries, "at least one recovery must be run";

        /// The time after which a search stops, 60 seconds by default, or as many as the variable `PM_CRASHSIM_SECONDS` says, 0 for no limit. All that belongs
        /// to a search shares it: for [`explore`](Self::explore) shrinking a failure and looking for its repair, which have a quarter at least; for
        /// [`redundant_sites`](Self::redundant_sites) the explorations without each site. What was not tried is in the [`Coverage`](crate::Coverage), which is
        /// [out of time](crate::Coverage::is_out_of_time) then, and not exhaustive. Points are visited with few choices each before more are tried
        /// anywhere, so the least telling choices are left out. A replay has no limit.
        time(time: Duration) => 0.time.total;

        /// The time limit of one check, 60 seconds by default: a recovery that hangs, or takes far too long, is a failure with a name. It is tested
        /// when the check accesses the region and when it returns, so a check that hangs without any access is not stopped.
        time_per_check(time_per_check: Duration) => 0.time_per_check;

        /// The seed of the random choices; 0 by default.
        seed(seed: u64) => 0.seed;

        /// Whether the search is directed by what recovery reads; on by default. A choice that differs from a tried one only in lines
        /// that recovery does not read is then not tried again, because it would show nothing new. Turn it off for a check that
        /// looks at more than the region, or for comparison.
        reduce(reduce: bool) => 0.reduce;

        /// The number of threads to explore on; 1 by default, because tests already run in parallel. The threads do not share what
        /// they learn, so more threads need more recoveries.
        jobs(jobs: usize) => 0.jobs, "an exploration needs at least one thread";

        /// The number of accesses that a check may make to the region, 16 million by default: a recovery that never ends is a failure,
        /// and not a hung test.
        accesses_per_check(accesses_per_check: u64) => 0.accesses_per_check;

        /// Whether a failure is shrunk before it is returned: to the fewest crashes, the fewest lost lines and the longest
        /// kept prefixes with which the check still fails. On by default; it runs the check up to 1,000 times more. A
        /// replay is never shrunk, so the check runs once for each of its crashes.
        shrink(shrink: bool) => 0.shrink;

        /// Whether to look for one flush or fence that repairs a failure. On by default; it runs the operation
        /// up to 24 times more, and explores each of these runs with smaller bounds. A replay looks for none.
        repair(repair: bool) => 0.repair;

        /// Whether an acknowledgement may overtake the fence before it; off by default. By the letter of the manual `sfence` only
        /// orders, and does not wait; no known memory controller shows the difference.
        strict_ack(strict: bool) => 0.rules.strict_ack;

        /// Whether a successful compare-exchange also fences, as on x86; on by default. Turn it off for code that must not rely on it.
        exchange_fences(fences: bool) => 0.rules.exchange_fences;
    }

    /// Suppresses the flushes or fences of this site, in the operation and in recoveries.
    #[must_use]
    pub fn suppress(mut self, site: &Site) -> Self {
        self.0.edits.suppressed.insert(site.clone());
        self
    }

    /// Adds flushes or fences to the operation and to recoveries. The opposite of [`suppress`](Self::suppress).
    #[must_use]
    pub fn inject(mut self, injection: &Injection) -> Self {
        self.0.edits.injected.insert(injection.clone());
        self
    }

    /// Also looks for misuse of flushes and fences in the operation and in recoveries; off by default.
    ///
    /// A denied lint fails the exploration before anything is crashed; a warning is in
    /// [`Coverage::findings`](crate::Coverage::findings), and [`check`](Self::check) prints it, visible with `--nocapture`.
    /// Recoveries are linted as far as they are [crashed](Self::crashes), and may flush and fence needlessly.
    #[must_use]
    pub fn lints(mut self, lints: Lints) -> Self {
        self.0.lints = lints;
        self
    }

    /// Also injects media faults: after a successful recovery from a crash, the check runs on the same image with each
    /// set of `faults`. [`Crash::faults`] returns these to the check, which may then accept a reported loss, but not wrong contents.
    ///
    /// Faults follow a crash of the operation, or its orderly end. Recoveries from them are neither crashed nor linted.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.0.faults = faults;
        self
    }

    /// Repeats only the crashes with that name, given that operation, check and bounds are unchanged. If the run no longer has such a crash, that
    /// is a failure too.
    ///
    /// # Panics
    /// When `id` is not such a name, or of another model.
    #[must_use]
    pub fn replay(mut self, id: &str) -> Self {
        let parsed = ReplayId::parse(id).unwrap_or_else(|| panic!("{id:?} names no crash"));
        assert_eq!(parsed.model, self.0.rules.model, "{id:?} was found under another model");
        self.0.replay = Some(parsed);
        self
    }

    /// As [`replay`](Self::replay), for a name from a command line: `None` if it is not such a name, or of another model.
    #[must_use]
    pub fn try_replay(self, id: &str) -> Option<Self> {
        let parsed = ReplayId::parse(id)?;
        (parsed.model == self.0.rules.model).then(|| self.replay(id))
    }

    /// The model explored under.
    #[must_use]
    pub const fn model(&self) -> Model {
        self.0.rules.model
    }

    /// Runs `operation` on a region that starts as `image`, and `check` on everything that a crash of it can leave.
    ///
    /// `check` receives the crashed region, recovers, compares with the acknowledgements, and fails by a panic or an error.
    ///
    /// With the name of a crash in the environment variable `PM_CRASHSIM_REPLAY`, as the last line of a report sets it,
    /// only that crash is repeated; an exploration without a crash of that name reports that on standard error and passes.
    ///
    /// # Errors
    /// The first failure found.
    ///
    /// # Panics
    /// When `PM_CRASHSIM_REPLAY` is not the name of a crash.
    pub fn explore<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: impl Fn(&Run<A>) -> O,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Result<Coverage, Box<Failure>> {
        self.explore_by(|settings| search(settings, image, &operation, None, &check))
    }

    /// As [`explore`](Self::explore), for tests: prints the coverage, or panics with the report of the failure.
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
        self.report(self.explore(image, operation, check))
    }

    /// As [`explore`](Self::explore) with at least one [kill](Self::kills), where `second` runs after each kill of `first`, in place of the check:
    /// another process that opens the structure, continues and acknowledges its own operations. `check` runs on everything that a crash of either
    /// process can leave. [`Crash::acked`] has the acknowledgements of the first process when it was killed, and then those of the second when the
    /// power failed. [`Run::acked`] returns to the second process what was acknowledged before it.
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
            let run = Run::new(pmem, before.to_vec());
            let failed = inherit_quiet(is_quiet, || catch(|| second(&run).failure()));
            (run.take_acked(), failed.map(|message| format!("the process after the kill failed: {message}")))
        };
        let explorer = self.clone().kills(self.0.kills.max(1));
        explorer.explore_by(|settings| search(settings, image, &first, Some(&restart), &check))
    }

    /// As [`explore_restarted`](Self::explore_restarted), for tests: prints the coverage, or panics with the report of the failure.
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
        self.report(self.explore_restarted(image, first, second, check))
    }

    /// As [`explore`](Self::explore), for a recorded run: runs `check` on everything that a crash of it can
    /// leave. [`Crash::acked`] has a `()` for each acknowledgement in the trace.
    ///
    /// # Errors
    /// The first failure found.
    pub fn explore_trace<V: Verdict>(
        &self,
        file: &TraceFile,
        check: impl Fn(&Crash<'_, ()>) -> V + Sync,
    ) -> Result<Coverage, Box<Failure>> {
        let acks = file.trace().acks(file.trace().events().len());
        let (acked, numbers) = (vec![(); acks], (0..=acks).collect::<Vec<usize>>());
        let history = History { acked: &acked, numbers: &numbers };
        self.begun().explore_record(file.start(), file.trace(), history, &mut Memory::default(), &check)
    }

    /// Runs `check` once, on a region that starts as `image`, as after a crash that followed these
    /// acknowledgements: a regression test for an image that a crash once left.
    ///
    /// ```
    /// use pm_core::Pmem;
    /// use pm_crashsim::{Crash, Explorer, SimPmem};
    /// let left = SimPmem::new(4096);
    /// left.store_u64(0, 1);
    /// let check = |crash: &Crash<u64>| crash.expect(crash.pmem().load_u64(0), crash.acked().to_vec());
    /// assert!(Explorer::default().recover(&left.to_image(), &[1], check).is_ok());
    /// let failure = Explorer::default().recover(&left.to_image(), &[2], check).unwrap_err();
    /// assert_eq!(failure.message, "1 was found, where only 2 is allowed");
    /// ```
    ///
    /// # Errors
    /// The failure of the check.
    pub fn recover<A, V: Verdict>(
        &self,
        image: &Image,
        acked: &[A],
        check: impl Fn(&Crash<'_, A>) -> V,
    ) -> Result<(), Box<Failure>> {
        let crash = Crash::new(Arc::new(self.0.recovering(image, Recording::Nothing)), acked, 1);
        let Some(message) = catch(|| check(&crash).failure()) else {
            return Ok(());
        };
        Err(Box::new(Failure::new(crash.complaint(message), Coverage::default())))
    }

    /// Explores once as it is, then once without each flush and fence that was exercised; returns
    /// those whose loss the check did not notice. If the result is empty, each is needed, and the check notices its loss.
    ///
    /// Such a test shows when a later change makes its check too lenient, or a flush redundant. Half of the [time](Self::time) is for the first
    /// exploration, and of the rest each other one has an equal part. A site whose exploration was out of time before it failed is returned, too, and
    /// standard error says so.
    ///
    /// # Errors
    /// The failure found with every flush and fence in place.
    pub fn redundant_sites<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: impl Fn(&Run<A>) -> O,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Result<Vec<Site>, Box<Failure>> {
        let begun = self.begun();
        let first = Self(Settings { time: begun.0.time.part(2), ..begun.0.clone() });
        let coverage = first.explore(image, &operation, &check)?;
        let is_missing =
            |site: &Site| self.0.edits.suppressed.contains(site) || site::suppressed() == Some(site);
        let mut sites: Vec<Site> = coverage.sites.into_iter().filter(|site| !is_missing(site)).collect();
        // It is the check that has to notice, not a lint.
        let bare = begun.shrink(false).lints(Lints::all_allowed());
        let mut left = sites.len();
        sites.retain(|site| {
            let mut without = bare.clone().suppress(site);
            without.0.time = without.0.time.part(left);
            left -= 1;
            let explored = quietly(|| search(&without.0, image, &operation, None, &check));
            if explored.as_ref().is_ok_and(|coverage| coverage.is_out_of_time) {
                eprintln!("pm-crashsim: out of time before the loss of {site} could show; {TIME_VARIABLE} allows more");
            }
            explored.is_ok()
        });
        Ok(sites)
    }

    /// The explorer of a search that begins now, unless it has begun.
    pub(crate) fn begun(&self) -> Self {
        Self(self.0.begun())
    }

    /// The explorer of a search that has found a failure, to understand it.
    pub(crate) fn for_failure(self) -> Self {
        let time = self.0.time.for_failure();
        Self(Settings { time, ..self.0 })
    }

    /// The explorer of a search that has a part of the time of this one, which has begun.
    pub(crate) fn with_part_of_time(self, searches: usize) -> Self {
        let time = self.0.time.part(searches);
        Self(Settings { time, ..self.0 })
    }

    /// Crashes `operation`, which starts from the image that `crash` left, once, with the bounds of the crashes of recoveries, and
    /// without faults and lints, which belong to the outer check.
    ///
    /// Also returns what the outcome depends on. A caller that skips this, because the outcome is known,
    /// passes it to [`Crash::depends_on`], as is done here.
    pub(crate) fn explore_within<A, B: Sync, O: Verdict, V: Verdict>(
        &self,
        crash: &Crash<'_, A>,
        operation: &impl Fn(&Run<B>) -> O,
        check: &(impl Fn(&Crash<'_, B>) -> V + Sync),
    ) -> (Explored<Coverage>, Touched) {
        let shared = SharedTouched::default();
        let settings = Settings {
            crashes: 1,
            kills: 0,
            choices_per_point: self.0.nested_choices_per_point,
            replay: None,
            shrink: false,
            repair: false,
            jobs: 1,
            lints: Lints::all_allowed(),
            faults: Faults::none(),
            touched: Some(SharedTouched::clone(&shared)),
            ..self.0.clone()
        };
        let explored =
            search(&settings, crash.pmem().start(), operation, None, check).map_err(|mut failure| {
                // The name of a crash is meaningless without the image of this check.
                failure.replay = None;
                failure
            });
        let touched = core::mem::take(&mut *lock(&shared));
        crash.depends_on(&touched);
        (explored, touched)
    }

    /// Crashes a recorded run everywhere, and shrinks the failure found.
    pub(crate) fn explore_record<A: Sync, V: Verdict>(
        &self,
        image: &Image,
        trace: &Trace,
        history: History<'_, A>,
        memory: &mut Memory,
        check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
    ) -> Explored<Coverage> {
        explore_record(&self.0, image, trace, history, memory, None, check)
    }

    /// A region whose run is recorded for this explorer.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub(crate) fn recorded(&self, image: &Image) -> SimPmem {
        self.0.recorded(image)
    }

    pub(crate) const fn is_replay(&self) -> bool {
        self.0.replay.is_some()
    }

    pub(crate) const fn first_seed(&self) -> u64 {
        self.0.seed
    }

    pub(crate) const fn is_killing(&self) -> bool {
        self.0.kills > 0
    }

    /// Explores by `search` and looks for a repair of the failure; or replays the crash that the environment names.
    fn explore_by(&self, search: impl Fn(&Settings) -> Explored<Coverage>) -> Explored<Coverage> {
        if !self.is_replay()
            && let Some(id) = ReplayId::of_environment()
        {
            return self.replay_if_met(id, search);
        }
        let settings = self.0.begun();
        search(&settings).map_err(|mut failure| {
            if settings.repair && !self.is_replay() && failure.is_to_repeat() {
                let settings = Settings { time: settings.time.for_failure(), ..settings };
                let passes =
                    |settings: &Settings| search(settings).is_ok_and(|coverage| !coverage.is_out_of_time);
                failure.repair = quietly(|| find_repair(&settings, &failure, passes));
            }
            failure.trace_file = TraceFile::keep_failure(&failure);
            failure
        })
    }

    /// Repeats the crash if this exploration has it.
    fn replay_if_met(
        &self,
        id: ReplayId,
        search: impl Fn(&Settings) -> Explored<Coverage>,
    ) -> Explored<Coverage> {
        let skip =
            |reason: &str| eprintln!("pm-crashsim: {REPLAY_VARIABLE}={id} is not replayed here: {reason}");
        if id.model != self.model() {
            skip("it is of another model");
            return Ok(Coverage::default().skipped());
        }
        match search(&Settings { replay: Some(id.clone()), ..self.0.clone() }) {
            // The operation ran, and its record has no such crash.
            Err(failure) if failure.crashes.is_empty() && !failure.is_of_operation => {
                skip(&failure.message);
                Ok(failure.coverage.skipped())
            }
            repeated => repeated,
        }
    }

    /// Prints the coverage, or panics with the report of the failure.
    #[track_caller]
    fn report(&self, explored: Explored<Coverage>) -> Coverage {
        let coverage = match explored {
            Ok(coverage) => coverage,
            Err(failure) => panic!("{}", failure.for_stderr()),
        };
        println!("{}: {coverage}", self.model());
        if let Some(advice) = coverage.advice() {
            println!("not every legal crash was tried: {advice}");
        }
        coverage.findings.iter().for_each(|finding| println!("{finding}"));
        coverage
    }
}

/// Runs `operation` on a region that starts as `image` (a number stands for that many zero bytes), and `check` on
/// everything that a crash of it can leave, with the default [`Explorer`].
///
/// ```
/// use pm_core::{FenceError, Pmem};
/// use pm_crashsim::{Crash, Run, model};
///
/// // Two words on one line: written in order, they survive in order.
/// let operation = |run: &Run<()>| {
///     run.pmem().store_u64(0, 1);
///     run.pmem().store_u64(8, 1);
///     run.pmem().persist(0, 16)?;
///     run.ack(());
///     Ok::<(), FenceError>(())
/// };
/// model(4096, operation, |crash: &Crash<()>| {
///     let (first, second) = (crash.pmem().load_u64(0), crash.pmem().load_u64(8));
///     assert!(first >= second);
///     assert!(crash.acked().is_empty() || second == 1);
/// });
/// ```
///
/// # Panics
/// With the report of the first failure found; or if the length is zero or not a multiple of 64.
#[track_caller]
pub fn model<A: Send + Sync, O: Verdict, V: Verdict>(
    image: impl Into<Image>,
    operation: impl Fn(&Run<A>) -> O + Sync,
    check: impl Fn(&Crash<'_, A>) -> V + Sync,
) -> Coverage {
    Explorer::default().check(&image.into(), operation, check)
}
