//! The crashes at one point: which of the legal choices are tried, and how those that are alike are tried once.

use super::examined::Examined;
use super::failure::Failure;
use super::session::{Family, Point, Recovered, Session};
use crate::branch::{Branches, LineOption};
use crate::choices::Choices;
use crate::image::Image;
use crate::line::PrintSet;
use crate::memo::{Known, NodeId};
use crate::plan::Plan;
use std::rc::Rc;
use std::sync::Arc;

/// How many times the bound known paths may be walked: they cost little, but not nothing.
const WALKS_PER_RUN: u64 = 64;

/// What one visit of a point works with.
struct Search<'s> {
    point: &'s Point<'s>,
    choices: &'s Choices,
    /// How many recoveries may be run.
    budget: u64,
    distinct: &'s mut PrintSet,
    examined: &'s mut Examined,
}

/// A line that was read, and the contents that are still to be tried for it.
struct Frame {
    node: NodeId,
    options: Rc<[LineOption]>,
    next: usize,
    /// How much was read and chosen when it was read.
    path_len: usize,
    depth: usize,
}

impl<A> Session<'_, A> {
    /// Tries the choices at one point: all, if their number, or the number of different recoveries, is within the
    /// bound; else as many as the bound allows.
    pub(super) fn crash_at(
        &mut self,
        point: &Point<'_>,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let explorer = self.subject.explorer;
        let choices = Choices::of(point.machine);
        let bound = match point.level {
            0 => explorer.choices_per_point,
            _ => explorer.nested_choices_per_point,
        };
        let legal = choices.count();
        let is_of_operation = point.level == 0 && !point.is_after_kill;
        let every = self.every;
        let level = self.covered(point);
        let is_passed_over = is_of_operation && !level.points.is_multiple_of(every);
        level.points += 1;
        level.legal = level.legal.saturating_add(legal);

        if is_passed_over || self.is_spent() {
            return self.leave_out(point);
        }
        let mut distinct = self.tried_before(point);
        if let Some(few) = self.few {
            return self.sample(point, &choices, bound.min(few), examined, &mut distinct);
        }
        if explorer.reduce {
            let mut branches = Branches::new(point.machine, &choices);
            if self.is_covered(point, &branches) {
                let level = self.covered(point);
                level.tried = level.tried.saturating_add(legal);
                self.is_covered_elsewhere = true;
                // What the recovery stored to was found covered for what was there; and what was there is what it found.
                examined.extend(point.machine.trace().lines_stored());
                return Ok(());
            }
            let budget = if legal <= u128::from(bound) { bound } else { bound.div_ceil(2) };
            let mut search = Search { point, choices: &choices, budget, distinct: &mut distinct, examined };
            // First without crashes of the recoveries: what is known then need not be tried inside them.
            let mut is_done = self.branch(&mut search, &mut branches, 0, None)?;
            let inside = self.crashes_left(point);
            if is_done && inside > 0 {
                let family = Family { branches, outer: point.outer };
                let mut branches = Branches::new(point.machine, &choices);
                is_done = self.branch(&mut search, &mut branches, inside, Some(&family))?;
            }
            if is_done {
                self.memory.visits.all_tried(point.visit, point.outer.is_some());
                let level = self.covered(point);
                level.tried = level.tried.saturating_add(legal);
                return Ok(());
            }
            self.memory.visits.some_tried(point.visit);
        }
        self.sample(point, &choices, bound, examined, &mut distinct)
    }

    /// No more recoveries may be run, or not in this round: what earlier rounds tried here is all there is.
    fn leave_out(&mut self, point: &Point<'_>) -> Result<(), Box<Failure>> {
        let tried = self.tried_before(point).len() as u128;
        let level = self.covered(point);
        level.tried = level.tried.saturating_add(tried);
        level.is_exhaustive = false;
        Ok(())
    }

    /// The images that earlier rounds tried at a point of the operation, taken out.
    fn tried_before(&mut self, point: &Point<'_>) -> PrintSet {
        let is_of_operation = point.level == 0 && !point.is_after_kill;
        let before = is_of_operation.then(|| self.tried.remove(&(point.events, point.acked)));
        before.flatten().unwrap_or_default()
    }

    /// Whether everything that may survive here may also have survived the crash that this recovery recovers from, and
    /// so was tried.
    fn is_covered(&mut self, point: &Point<'_>, branches: &Branches<'_>) -> bool {
        let Some(nearest) = point.outer else {
            return false;
        };
        // What the recovery found is among what that crash may leave, so that only what it stored to can differ.
        let mut stored: Vec<u64> = point.machine.trace().lines_stored().collect();
        stored.sort_unstable();
        stored.dedup();
        if nearest.branches.include(branches, stored.into_iter()) {
            return true;
        }
        let watched = Arc::clone(self.memo(point.level).watched());
        let farther = core::iter::successors(nearest.outer, |family| family.outer);
        let mut farther = farther.take(self.subject.explorer.crashes);
        farther.any(|family| family.branches.include(branches, watched.iter().copied()))
    }

    /// Reads what recovery reads, tries every content that each line may have, and crashes each recovery `inside` times.
    /// True when all were tried; false when that would take more than `budget` recoveries.
    fn branch(
        &mut self,
        search: &mut Search<'_>,
        branches: &mut Branches<'_>,
        inside: usize,
        family: Option<&Family<'_>>,
    ) -> Result<bool, Box<Failure>> {
        let Search { point, choices, budget, .. } = *search;
        let history = self.subject.history.numbers[point.acked];
        let mut node = self.memo(point.level).root(history as u64);
        let (mut path, mut frames) = (Vec::new(), Vec::<Frame>::new());
        let (mut runs, mut walks) = (0, 0);
        let may_be_too_many = choices.count() > u128::from(budget);
        loop {
            match self.memo(point.level).known(node) {
                Known::Reads(line) => {
                    path.push(line);
                    search.examined.add(line);
                    let Ok(options) = branches.options(line) else {
                        return Ok(false);
                    };
                    let Some(options) = options else {
                        let content = branches.durable_line(line);
                        node = self.memo(point.level).child(node, content);
                        continue;
                    };
                    let (path_len, depth) = (path.len(), branches.depth());
                    frames.push(Frame { node, options, next: 0, path_len, depth });
                }
                Known::Ran(ran) if ran.suffices(inside, point.visit, &self.memory.visits) => {
                    walks += 1;
                    if may_be_too_many {
                        search.distinct.insert(point.machine.image(&mut branches.kept()).fingerprint());
                    }
                    if walks > budget.saturating_mul(WALKS_PER_RUN) {
                        return Ok(false);
                    }
                }
                Known::Ran(_) | Known::Nothing => {
                    if runs == budget || self.is_spent() || self.memo(point.level).is_full() {
                        return Ok(false);
                    }
                    runs += 1;
                    let mut kept = branches.kept();
                    let image = point.machine.image(&mut kept);
                    search.distinct.insert(image.fingerprint());
                    let recovered = self.recover(&image, point, inside, family);
                    let Recovered { lines, ran } =
                        recovered.map_err(|failure| Self::blame(failure, point, choices, &kept))?;
                    self.memo(point.level).insert(node, &path, &lines, &image, ran);
                    continue;
                }
            }
            // On to the next content of the last line that has one left.
            loop {
                let Some(frame) = frames.last_mut() else {
                    return Ok(true);
                };
                branches.undo_to(frame.depth);
                path.truncate(frame.path_len);
                let Some(option) = frame.options.get(frame.next) else {
                    frames.pop();
                    continue;
                };
                frame.next += 1;
                branches.choose(option);
                node = self.memo(point.level).child(frame.node, &option.content);
                break;
            }
        }
    }

    /// Tries the choices of a plan: all of them, or the most telling ones and then random ones.
    fn sample(
        &mut self,
        point: &Point<'_>,
        choices: &Choices,
        bound: u64,
        examined: &mut Examined,
        distinct: &mut PrintSet,
    ) -> Result<(), Box<Failure>> {
        let plan = Plan::new(choices, bound, self.subject.explorer.seed);
        let mut kept = Vec::new();
        let mut is_cut_short = false;
        for choice in 0..plan.len() {
            is_cut_short = self.is_spent();
            if is_cut_short {
                break;
            }
            kept.clear();
            plan.keep(choice, &mut kept);
            let image = point.machine.image(&mut kept);
            if !plan.is_exhaustive() || self.most_recoveries < u64::MAX {
                distinct.insert(image.fingerprint());
            }
            let inside = if plan.crashes_recovery(choice) { self.crashes_left(point) } else { 0 };
            let tried = self.recover_once(&image, point, inside, examined);
            tried.map_err(|failure| Self::blame(failure, point, choices, &kept))?;
        }
        let is_exhaustive = plan.is_exhaustive() && !is_cut_short;
        let tried = if is_exhaustive { plan.legal() } else { distinct.len() as u128 };
        if point.level == 0 && !point.is_after_kill {
            self.tried.insert((point.events, point.acked), core::mem::take(distinct));
        }
        let level = self.covered(point);
        level.tried = level.tried.saturating_add(tried);
        level.is_exhaustive &= is_exhaustive;
        Ok(())
    }

    /// Recovers from an image, unless it is known how that goes.
    fn recover_once(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        inside: usize,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let history = self.subject.history.numbers[point.acked];
        if !self.subject.explorer.reduce {
            let is_new = self.memory.is_new(image.fingerprint(), history, inside);
            return if is_new { self.recover(image, point, inside, None).map(|_| ()) } else { Ok(()) };
        }
        let mut path = Vec::new();
        let mut node = self.memo(point.level).root(history as u64);
        loop {
            match self.memo(point.level).known(node) {
                Known::Reads(line) => {
                    path.push(line);
                    node = self.memo(point.level).child(node, image.line(line));
                }
                Known::Ran(ran) if ran.suffices(inside, point.visit, &self.memory.visits) => break,
                Known::Ran(_) | Known::Nothing => {
                    let Recovered { lines, ran } = self.recover(image, point, inside, None)?;
                    if !self.memo(point.level).is_full() {
                        self.memo(point.level).insert(node, &path, &lines, image, ran);
                    }
                    path.extend(lines);
                    break;
                }
            }
        }
        examined.extend(path);
        Ok(())
    }

    /// How many more crashes may follow one at this point.
    fn crashes_left(&self, point: &Point<'_>) -> usize {
        self.crashes - point.level - 1
    }
}
