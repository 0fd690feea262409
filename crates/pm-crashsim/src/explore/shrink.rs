//! Shrinking a failure to its essentials: the fewest lost lines, the longest kept prefixes, the fewest crashes.
//!
//! Each step is tested: a smaller loss counts if the check still fails with it. At first it must fail in the same way (with a message that differs in
//! numbers only), so that the reported failure is the one found, as long as that shrinks; then any failure counts. At the end, unless the runs are
//! used up, the check passes whenever any one of the lost lines is restored.

use super::run::Crash;
use super::settings::Settings;
use super::subject::Check;
use crate::image::Image;
use crate::model::{Choices, Chunk, Machine, Survivor};
use crate::outcome::{Complaint, CrashRecord, CrashReport, Failure, ReplayCrash, ReplayId};
use crate::sim::Recording;
use crate::trace::Trace;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The number of runs of the check for restoring lost stores.
const RESTORING_RUNS: u32 = 750;
/// The number of runs for finding the essential kept stores.
const DROPPING_RUNS: u32 = 250;

type Kept = BTreeSet<Survivor>;

/// The unit of a move: ever smaller, because a smaller move helps only where no larger one succeeds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grain {
    Lines,
    Stores,
    Words,
}

pub(super) struct Shrinker<'s, A> {
    settings: &'s Settings,
    acked: &'s [A],
    check: Check<'s, A>,
    runs_left: u32,
    /// Only complaints of this kind count; any complaint if there is none.
    kind: Option<String>,
    /// The kinds of complaints met, by the survivors of the crashes; `None` where the check passed.
    known: HashMap<Vec<Kept>, Option<String>>,
}

/// Crashes, each in the recovery from the one before, where the check fails after the last.
struct Failing {
    complaint: Complaint,
    crashes: Vec<Crashed>,
}

struct Crashed {
    start: Image,
    trace: Arc<Trace>,
    events: usize,
    choices: Choices,
    kept: Kept,
}

impl<'s, A> Shrinker<'s, A> {
    pub(super) fn new(settings: &'s Settings, acked: &'s [A], check: Check<'s, A>) -> Self {
        Self { settings, acked, check, runs_left: RESTORING_RUNS, kind: None, known: HashMap::new() }
    }

    /// Shrinks the failure of the run with that mark as far as possible. One without a crash stays as it is.
    pub(super) fn shrink(mut self, failure: &mut Failure, mark: u32) {
        let crashes: Vec<Crashed> =
            failure.crashes.iter().map(|crash| Crashed::of(&crash.record, self.settings)).collect();
        if crashes.is_empty() {
            return;
        }
        let kept: Vec<Kept> = crashes.iter().map(|crash| crash.kept.clone()).collect();
        let Some(found) = self.attempt(&crashes, &kept) else {
            failure.message.push_str(
                "\n(the check passed when it was run again on the same bytes: its result depends on something else)",
            );
            return;
        };
        self.kind = Some(found.complaint.kind());
        let same_kind = self.fewest_lost(found);
        self.kind = None;
        let fewest = self.fewest_lost(same_kind);
        let is_minimal = self.runs_left > 0 && !self.settings.time.is_spent();
        self.runs_left = DROPPING_RUNS;
        let essential = self.essential(&fewest);
        self.rewrite(failure, &fewest, &essential);
        self.rename(failure, &fewest, mark);
        failure.crashes.iter_mut().for_each(|crash| crash.is_minimal = is_minimal);
    }

    /// Restores lost lines, stores and words, the largest first, until no more can be.
    fn fewest_lost(&mut self, mut best: Failing) -> Failing {
        loop {
            let before = best.kept();
            let mut level = 0;
            while level < best.crashes.len() {
                for grain in [Grain::Lines, Grain::Stores, Grain::Words] {
                    best = self.restore(best, level, grain);
                }
                level += 1;
            }
            if best.kept() == before || self.runs_left == 0 {
                return best;
            }
        }
    }

    /// Restores as much as possible at one level, many at once first.
    fn restore(&mut self, mut best: Failing, level: usize, grain: Grain) -> Failing {
        let Some(crash) = best.crashes.get(level) else {
            return best;
        };
        for several in halved(&crash.restoring(grain)) {
            let mut kept = best.kept();
            let Some(at_level) = kept.get_mut(level) else {
                return best;
            };
            several.iter().for_each(|these| at_level.extend(these));
            if *at_level != best.crashes[level].kept {
                best = self.attempt(&best.crashes, &kept).unwrap_or(best);
            }
        }
        best
    }

    /// The kept stores that the failure needs: drops the rest, as long as the check fails.
    fn essential(&mut self, fewest: &Failing) -> Vec<Kept> {
        let mut needed = fewest.kept();
        for level in 0..needed.len() {
            loop {
                let before = needed[level].len();
                for grain in [Grain::Lines, Grain::Stores] {
                    self.drop_kept(fewest, &mut needed, level, grain);
                }
                if needed[level].len() == before || self.runs_left == 0 {
                    break;
                }
            }
        }
        needed
    }

    fn drop_kept(&mut self, fewest: &Failing, needed: &mut Vec<Kept>, level: usize, grain: Grain) {
        for several in halved(&fewest.crashes[level].dropping(&needed[level], grain)) {
            let mut kept = needed.clone();
            kept[level].retain(|survivor| !several.iter().any(|these| these.contains(survivor)));
            let is_smaller = kept[level].len() < needed[level].len();
            let failing = is_smaller.then(|| self.attempt(&fewest.crashes, &kept)).flatten();
            // A failure after fewer crashes is a different one.
            if failing.is_some_and(|failing| failing.crashes.len() == needed.len()) {
                *needed = kept;
            }
        }
    }

    /// Repeats the crashes at the same places, with these survivors; returns the failure, if it counts.
    fn attempt(&mut self, crashes: &[Crashed], kept: &[Kept]) -> Option<Failing> {
        let counts = |kind: Option<&String>| match (&self.kind, kind) {
            (Some(wanted), Some(kind)) => wanted == kind,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if self.known.get(kept).is_some_and(|kind| !counts(kind.as_ref()))
            || self.runs_left == 0
            || self.settings.time.is_spent()
        {
            return None;
        }
        self.runs_left -= 1;
        let failing = self.repeat(crashes, kept);
        let kind = failing.as_ref().map(|failing| failing.complaint.kind());
        let failing = failing.filter(|_| counts(kind.as_ref()));
        self.known.insert(kept.to_vec(), kind);
        failing
    }

    fn repeat(&self, crashes: &[Crashed], kept: &[Kept]) -> Option<Failing> {
        let first = crashes.first()?;
        let acked = first.trace.acks(first.events);
        let (mut start, mut trace) = (first.start.clone(), Arc::clone(&first.trace));
        let mut repeated: Vec<Crashed> = Vec::new();
        for (model, kept) in crashes.iter().zip(kept) {
            if !goes_the_same_way(&trace, &model.trace, model.events) {
                return None;
            }
            let (crashed, image) = Crashed::new(self.settings, start, trace, model.events, kept);
            repeated.push(crashed);
            let recording =
                if repeated.len() < crashes.len() { Recording::Writes } else { Recording::Nothing };
            let pmem = Arc::new(self.settings.recovering(&image, recording));
            let crash = Crash::new(Arc::clone(&pmem), &self.acked[..acked], repeated.len());
            if let Some(complaint) = (self.check)(&crash) {
                return Some(Failing { complaint, crashes: repeated });
            }
            (start, trace) = (image, Arc::new(pmem.take_trace()));
        }
        None
    }

    fn rewrite(&self, failure: &mut Failure, fewest: &Failing, essential: &[Kept]) {
        failure.message.clone_from(&fewest.complaint.message);
        failure.mismatch.clone_from(&fewest.complaint.mismatch);
        let reports = fewest.crashes.iter().zip(essential).map(|(crash, essential)| {
            let machine = Machine::at(self.settings.rules, &crash.start, &crash.trace, crash.events);
            let record = CrashRecord::new(&machine, crash.events, &crash.kept_chunks());
            CrashReport::new(record, &crash.choices.all(), Some(essential))
        });
        failure.crashes = reports.collect();
    }

    /// Sets the replay name to that of the shrunk crashes.
    fn rename(&self, failure: &mut Failure, fewest: &Failing, mark: u32) {
        let name = |crash: &Crashed| {
            let position = crash.trace.position(crash.events);
            ReplayCrash::new(&crash.choices, position, &crash.kept_chunks())
        };
        failure.path = fewest.crashes.iter().map(name).collect();
        let id = ReplayId {
            model: self.settings.rules.model,
            mark,
            kills: Vec::new(),
            crashes: failure.path.clone(),
        };
        failure.replay = Some(id.to_string());
    }
}

impl Failing {
    fn kept(&self) -> Vec<Kept> {
        self.crashes.iter().map(|crash| crash.kept.clone()).collect()
    }
}

impl Crashed {
    /// The crash of that run after so many events, with these survivors; and its image.
    fn new(
        settings: &Settings,
        start: Image,
        trace: Arc<Trace>,
        events: usize,
        kept: &Kept,
    ) -> (Self, Image) {
        let machine = Machine::at(settings.rules, &start, &trace, events);
        let choices = Choices::of(&machine);
        let mut chunks = choices.legal(|chunk| kept.contains(&chunk.as_survivor()));
        // With the chunks that must be kept too, and without those that cannot be.
        let image = machine.image(&mut chunks);
        let kept = chunks.iter().map(Chunk::as_survivor).collect();
        (Self { start, trace, events, choices, kept }, image)
    }

    fn of(record: &CrashRecord, settings: &Settings) -> Self {
        let kept = record.kept().iter().copied().collect();
        let trace = Arc::new(record.trace().clone());
        Self::new(settings, record.start().clone(), trace, record.events(), &kept).0
    }

    fn kept_chunks(&self) -> Vec<Chunk> {
        let mut chunks = self.choices.all();
        chunks.retain(|chunk| self.kept.contains(&chunk.as_survivor()));
        chunks
    }

    /// The chains as survivors.
    fn chains(&self) -> Vec<Vec<Vec<Survivor>>> {
        let names = |step: &Vec<Chunk>| step.iter().map(Chunk::as_survivor).collect();
        self.choices.chains().iter().map(|chain| chain.steps().iter().map(names).collect()).collect()
    }

    /// For each lost line, store or word: the chunks to keep for restoring it, with those that must precede it.
    fn restoring(&self, grain: Grain) -> Vec<Kept> {
        let is_kept = |step: &Vec<Survivor>| step.iter().all(|word| self.kept.contains(word));
        let chains = self.chains();
        match grain {
            Grain::Lines => {
                let all = chains.iter().flatten().flatten();
                let lost: BTreeSet<u64> =
                    all.filter(|word| !self.kept.contains(word)).map(|word| word.line()).collect();
                lost.into_iter().map(|line| through_line(&chains, line)).collect()
            }
            Grain::Stores => {
                let prefixes = chains.iter().flat_map(|chain| {
                    let whole = chain.iter().take_while(|step| is_kept(step)).count();
                    let ends = strides(chain.len() - whole).map(move |stride| whole + stride);
                    ends.map(|end| chain[..end].iter().flatten().copied().collect())
                });
                prefixes.collect()
            }
            Grain::Words => {
                let torn = chains.iter().filter_map(|chain| chain.iter().find(|step| !is_kept(step)));
                torn.flatten().map(|word| Kept::from([*word])).collect()
            }
        }
    }

    /// For each kept line or store: the chunks to lose for dropping it, with those that must follow it.
    fn dropping(&self, kept: &Kept, grain: Grain) -> Vec<Kept> {
        let chains = self.chains();
        if grain == Grain::Lines {
            let lines: BTreeSet<u64> = kept.iter().map(|word| word.line()).collect();
            return lines.into_iter().map(|line| from_line(&chains, line)).collect();
        }
        let is_touched = |step: &&Vec<Survivor>| step.iter().any(|word| kept.contains(word));
        let suffixes = chains.iter().flat_map(|chain| {
            let touched = chain.iter().take_while(is_touched).count();
            let starts = strides(touched).map(move |stride| touched - stride);
            starts.map(|start| chain[start..].iter().flatten().copied().collect())
        });
        suffixes.collect()
    }
}

/// Distances to move along a chain with so many stores left: the longest first, then half of that, down to one.
fn strides(left: usize) -> impl Iterator<Item = usize> {
    core::iter::successors(Some(left), |stride| Some(stride / 2)).take_while(|&stride| stride > 0)
}

/// Groups of neighbouring moves: all at once first, then halves, down to single ones.
fn halved<M>(moves: &[M]) -> impl Iterator<Item = &[M]> {
    strides(moves.len()).flat_map(|size| moves.chunks(size))
}

/// Of each chain that touches the line: everything up to the last store to it.
fn through_line(chains: &[Vec<Vec<Survivor>>], line: u64) -> Kept {
    let touches = |step: &Vec<Survivor>| step.iter().any(|word| word.line() == line);
    let prefixes = chains.iter().filter_map(|chain| Some(&chain[..=chain.iter().rposition(touches)?]));
    prefixes.flatten().flatten().copied().collect()
}

/// Of each chain that touches the line: everything from the first store to it.
fn from_line(chains: &[Vec<Vec<Survivor>>], line: u64) -> Kept {
    let touches = |step: &Vec<Survivor>| step.iter().any(|word| word.line() == line);
    let suffixes = chains.iter().filter_map(|chain| Some(&chain[chain.iter().position(touches)?..]));
    suffixes.flatten().flatten().copied().collect()
}

/// Whether two runs made the same events at the same places up to that event, with any contents.
fn goes_the_same_way(one: &Trace, other: &Trace, events: usize) -> bool {
    let step = |trace: &Trace, at: usize| {
        trace.events().get(at).map(|event| (event.kind.name(), event.kind.extent(), event.thread))
    };
    (0..events).all(|at| {
        let is_same = step(one, at).is_some() && step(one, at) == step(other, at);
        is_same && one.location_of(at) == other.location_of(at)
    })
}
