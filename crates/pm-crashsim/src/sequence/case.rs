//! One sequence: the states allowed after each crash of it, and after each kill, and the checks that compare.

use super::subject::{Durability, Oracle, Subject};
use crate::outcome::Explored;
use crate::sim::Touched;
use crate::{Coverage, Crash, Explorer, Image, Run, SimPmem};
use core::fmt::Write as _;
use core::ops::RangeInclusive;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of operations of the sequence that are applied again to a recovered structure.
const ONWARD_OPS: usize = 8;

/// A sequence with all its states.
pub(super) struct Case<'c, S: Subject> {
    subject: &'c S,
    durability: Durability,
    ops: &'c [S::Op],
    /// The states before the first operation, after it, and so on.
    states: Vec<S::State>,
    /// For each of these: the operations applied if a recovery finds it, and the state after each.
    onward: Vec<Vec<(S::Op, S::State)>>,
    /// The number of these operations that are crashed, too.
    crashed_onward: usize,
    known: Mutex<Known>,
}

/// The results of crashes after recovery.
#[derive(Default)]
struct Known {
    /// By the image and the prefix found: the lines of the image that the success depended on.
    stays: HashMap<(u128, usize), Touched>,
    /// The coverage of all crashes.
    coverage: Coverage,
}

/// The progress of a process of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// An operation of the first process returned.
    Returned,
    /// A process after a kill opened the structure, in the state after that many operations.
    Found(usize),
    /// An operation of that process returned.
    WentOn,
}

impl<'c, S: Oracle> Case<'c, S> {
    /// The sequence with the subject's own oracle, and further operations for a recovered structure.
    pub(super) fn of(subject: &'c S, durability: Durability, ops: &'c [S::Op], further: &[S::Op]) -> Self {
        let step = |mut state: S::State, op: &S::Op| {
            subject.expect(&mut state, op);
            Some(state)
        };
        Self::new(subject, durability, (ops, further), subject.initial(), step, S::State::clone)
    }
}

impl<'c, S: Subject> Case<'c, S> {
    /// The sequence with a reference that starts as `initial` and contains the subject's state. `step` returns
    /// `None` for an operation that is not possible in a state.
    pub(super) fn new<R: Clone>(
        subject: &'c S,
        durability: Durability,
        (ops, further): (&'c [S::Op], &[S::Op]),
        initial: R,
        step: impl Fn(R, &S::Op) -> Option<R>,
        state: impl Fn(&R) -> S::State,
    ) -> Self {
        let through = |from: R, ops: &[S::Op]| {
            let mut path = vec![from];
            for op in ops {
                let last = path[path.len() - 1].clone();
                path.extend(step(last, op));
            }
            path
        };
        let path = through(initial, ops);
        assert_eq!(path.len(), ops.len() + 1, "an operation of the sequence is not possible there");
        let again = ops[..ops.len().min(ONWARD_OPS)].iter().chain(further);
        let onward = path.iter().map(|from| {
            let mut last = from.clone();
            let mut states = Vec::new();
            for op in again.clone() {
                // Operations that are not possible there are left out.
                if let Some(next) = step(last.clone(), op) {
                    states.push((op.clone(), state(&next)));
                    last = next;
                }
            }
            states
        });
        let onward = onward.collect();
        let states = path.iter().map(state).collect();
        Self { subject, durability, ops, states, onward, crashed_onward: 0, known: Mutex::default() }
    }

    /// Also crashes that many operations on each recovered structure.
    pub(super) const fn crash_onward(mut self, ops: usize) -> Self {
        self.crashed_onward = ops;
        self
    }

    /// Crashes the sequence everywhere.
    pub(super) fn explore(&self, explorer: &Explorer, image: &Image) -> Explored<Coverage> {
        let mut explored = explorer.explore(
            image,
            |run: &Run<()>| self.run(run, ()),
            |crash: &Crash<'_, ()>| self.check(crash, explorer),
        );
        let coverage = match &mut explored {
            Ok(coverage) => coverage,
            Err(failure) => &mut failure.coverage,
        };
        coverage.add_after_recovery(&self.known.lock().unwrap_or_else(PoisonError::into_inner).coverage);
        if !explorer.is_killing() {
            return explored;
        }
        // The name of a crash belongs to one of the two explorations.
        match explored {
            Err(unknown) if explorer.is_replay() && unknown.crashes.is_empty() => {
                self.explore_restarted(explorer, image)
            }
            Ok(coverage) if !explorer.is_replay() => {
                Ok(coverage.with_restarted(self.explore_restarted(explorer, image)?))
            }
            explored => explored,
        }
    }

    /// Kills the sequence everywhere; the next process opens the structure, finds an allowed state, and applies operations that
    /// are crashed everywhere. The state that it found and its operations must survive.
    fn explore_restarted(&self, explorer: &Explorer, image: &Image) -> Explored<Coverage> {
        let first = |run: &Run<Step>| self.run(run, Step::Returned);
        let second = |run: &Run<Step>| -> Result<(), String> {
            let (returned, _) = progress(&run.acked());
            let explained = |problem: String| self.explain(returned, &problem);
            let mut store = self.open(run.pmem()).map_err(explained)?;
            let prefix =
                self.prefix(returned, &self.observe(&store).map_err(explained)?).map_err(explained)?;
            run.ack(Step::Found(prefix));
            for op in self.onward_ops(prefix) {
                self.apply(&mut store, &op).map_err(explained)?;
                run.ack(Step::WentOn);
            }
            Ok(())
        };
        let check = |crash: &Crash<'_, Step>| -> Result<(), String> {
            let (returned, since) = progress(crash.acked());
            let explained = |problem: String| self.explain(returned, &problem);
            let store = self.open(crash.pmem()).map_err(explained)?;
            let found = self.observe(&store).map_err(explained)?;
            match since {
                None => self.prefix(returned, &found).map(|_| ()),
                Some((prefix, done)) => {
                    self.is_allowed_onward(&found, prefix, &self.onward_ops(prefix), done)
                }
            }
            .map_err(explained)
        };
        explorer.clone().kills(1).crashes(1).explore_restarted(image, first, second, check)
    }

    /// The operation under test: the whole sequence, acknowledged one by one.
    fn run<A: Clone>(&self, run: &Run<A>, returned: A) -> Result<(), String> {
        let mut store = self.subject.open(Arc::clone(run.pmem())).map_err(|e| format!("open: {e}"))?;
        for (number, op) in self.ops.iter().enumerate() {
            let applied = self.subject.apply(&mut store, op);
            applied.map_err(|error| format!("operation {}, {op:?}: {error}", number + 1))?;
            run.ack(returned.clone());
            let found = self.subject.observe(&store).map_err(|error| format!("observe: {error}"))?;
            let expected = &self.states[number + 1];
            if found != *expected {
                let after = number + 1;
                return Err(format!("after operation {after}, {op:?}, is {found:?}, not {expected:?}"));
            }
        }
        Ok(())
    }

    /// Recovers and compares with the allowed states; then checks that recovery is repeatable and durable, and that the structure is usable.
    fn check(&self, crash: &Crash<'_, ()>, explorer: &Explorer) -> Result<(), String> {
        let returned = crash.acked().len();
        let explained = |problem: String| self.explain(returned, &problem);
        let mut store = self.open(crash.pmem()).map_err(explained)?;
        let found = self.observe(&store).map_err(explained)?;
        let prefix = self.prefix(returned, &found).map_err(explained)?;
        crash.recovered();
        drop(store);
        store = self.open(crash.pmem()).map_err(explained)?;
        let again = self.observe(&store).map_err(explained)?;
        if again != found {
            return Err(explained(format!("recovery found {found:?}, and opened once more, {again:?}")));
        }
        self.goes_on(crash, store, prefix).map_err(explained)?;
        self.stays(crash, explorer, prefix).map_err(explained)
    }

    /// Checks that no crash after the end of recovery reverts the state that it found, or completed operations.
    fn stays(&self, crash: &Crash<'_, ()>, explorer: &Explorer, prefix: usize) -> Result<(), String> {
        let key = (crash.pmem().start().fingerprint(), prefix);
        if let Some(touched) = self.known.lock().unwrap_or_else(PoisonError::into_inner).stays.get(&key) {
            crash.depends_on(touched);
            return Ok(());
        }
        let ops = &self.onward_ops(prefix);
        let recover_and_go_on = |run: &Run<()>| -> Result<(), String> {
            let mut store =
                self.subject.open(Arc::clone(run.pmem())).map_err(|error| format!("open: {error}"))?;
            run.ack(());
            for op in ops {
                self.apply(&mut store, op)?;
                run.ack(());
            }
            Ok(())
        };
        // A crash before recovery returned is a crash inside recovery, which is tested elsewhere.
        let recover_again = |crash: &Crash<'_, ()>| match crash.acked().len().checked_sub(1) {
            None => Ok(()),
            Some(done) => {
                self.is_allowed_onward(&self.observe(&self.open(crash.pmem())?)?, prefix, ops, done)
            }
        };
        let (explored, touched) = explorer.explore_within(crash, &recover_and_go_on, &recover_again);
        let coverage = explored.map_err(|failure| failure.to_string())?;
        let known = &mut *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(new) = known.stays.entry(key) {
            new.insert(touched);
            known.coverage.add(coverage);
        }
        Ok(())
    }

    /// The operations after a recovery that are crashed.
    fn onward_ops(&self, prefix: usize) -> Vec<S::Op> {
        self.onward[prefix].iter().take(self.crashed_onward).map(|(op, _)| op.clone()).collect()
    }

    /// Checks the state after a recovery that found `prefix`, `done` of `ops`, and a crash.
    fn is_allowed_onward(
        &self,
        again: &S::State,
        prefix: usize,
        ops: &[S::Op],
        done: usize,
    ) -> Result<(), String> {
        let path: Vec<&S::State> = core::iter::once(&self.states[prefix])
            .chain(self.onward[prefix].iter().map(|(_, state)| state))
            .collect();
        let allowed = &path[self.oldest(&ops[..done])..=(done + 1).min(ops.len())];
        if allowed.contains(&again) {
            return Ok(());
        }
        let then = if done == 0 { String::new() } else { format!(", then {:?} returned", &ops[..done]) };
        let found = path[0];
        let mut story = format!("recovery returned {found:?}{then}, and after a crash then, is {again:?}");
        if let Some(next) = ops.get(done) {
            line(&mut story, &format!("{next:?} on the recovered structure: in flight, or about to begin"));
        }
        allowed.iter().for_each(|state| line(&mut story, &format!("allowed: {state:?}")));
        Err(story)
    }

    /// Checks that operations on the recovered structure have the right effects, which reopening shows.
    fn goes_on(&self, crash: &Crash<'_, ()>, mut store: S::Store, prefix: usize) -> Result<(), String> {
        for (op, expected) in &self.onward[prefix] {
            let on_recovered = |what: String| format!("{op:?} on the recovered structure: {what}");
            self.subject.apply(&mut store, op).map_err(|error| on_recovered(error.to_string()))?;
            let found = self.observe(&store).map_err(on_recovered)?;
            drop(store);
            store = self.open(crash.pmem()).map_err(on_recovered)?;
            let reopened = self.observe(&store).map_err(on_recovered)?;
            if found != *expected || reopened != found {
                let what = format!("is {found:?}, and opened again, {reopened:?}, not {expected:?}");
                return Err(on_recovered(what));
            }
        }
        Ok(())
    }

    fn apply(&self, store: &mut S::Store, op: &S::Op) -> Result<(), String> {
        self.subject.apply(store, op).map_err(|error| format!("{op:?}: {error}"))
    }

    fn open(&self, pmem: &Arc<SimPmem>) -> Result<S::Store, String> {
        self.subject.open(Arc::clone(pmem)).map_err(|error| format!("cannot be opened: {error}"))
    }

    fn observe(&self, store: &S::Store) -> Result<S::State, String> {
        self.subject.observe(store).map_err(|error| format!("cannot be read: {error}"))
    }

    /// The number of operations after which the state is the one found, when `returned` had returned.
    fn prefix(&self, returned: usize, found: &S::State) -> Result<usize, String> {
        // Of several prefixes with one state, it does not matter which.
        let prefix = self.allowed(returned).rev().find(|&count| self.states[count] == *found);
        prefix.ok_or_else(|| format!("the state recovered is {found:?}, which is not allowed"))
    }

    /// The numbers of operations after which the state may be the one found, when that many had returned.
    fn allowed(&self, returned: usize) -> RangeInclusive<usize> {
        self.oldest(&self.ops[..returned])..=(returned + 1).min(self.ops.len())
    }

    /// The number of these completed operations that must have survived.
    fn oldest(&self, returned: &[S::Op]) -> usize {
        match self.durability {
            Durability::Strict => returned.len(),
            Durability::Buffered => {
                let synced = returned.iter().rposition(|op| self.subject.is_sync(op));
                synced.map_or(0, |last| last + 1)
            }
        }
    }

    /// The problem, with the progress of the sequence.
    fn explain(&self, returned: usize, problem: &str) -> String {
        let mut story = problem.to_owned();
        for (number, op) in self.ops.iter().enumerate() {
            let standing = match number {
                _ if number < returned => "returned",
                _ if number == returned => "in flight, or about to begin",
                _ => "not begun",
            };
            line(&mut story, &format!("operation {}: {op:?}: {standing}", number + 1));
        }
        for count in self.allowed(returned) {
            line(&mut story, &format!("allowed, after {count}: {:?}", self.states[count]));
        }
        story
    }
}

/// The progress of the processes: the number of operations of the first one that returned, and for the last one the state that it
/// found and the number of its operations since.
fn progress(acked: &[Step]) -> (usize, Option<(usize, usize)>) {
    let returned = acked.iter().take_while(|step| **step == Step::Returned).count();
    let found =
        acked.iter().rev().find_map(|step| if let Step::Found(prefix) = step { Some(*prefix) } else { None });
    let went_on = acked.iter().rev().take_while(|step| **step == Step::WentOn).count();
    (returned, found.map(|prefix| (prefix, went_on)))
}

fn line(story: &mut String, text: &str) {
    write!(story, "\n    {text}").expect("writing to a string never fails");
}
