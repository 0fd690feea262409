//! The legal contents of each line at one crash point, given the contents chosen for other lines.
//!
//! A recovery that does not read a line behaves alike whatever the line holds. So no content is chosen for a line until
//! a recovery reads it; then each content that the line may have is tried in turn.

use crate::Survivor;
use crate::line::{Line, LineMap, PrintSet, fingerprint};
use crate::model::{Chain, Choices, Chunk, Lane, Machine, lanes};

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A line with more possible contents is not enumerated.
const MAX_OPTIONS: usize = 4096;

/// One content that a line may have, and the choices that remain open with it.
#[derive(Clone)]
pub(super) struct LineOption {
    pub(super) content: Line,
    /// For each chain that touches the line: the remaining alternatives.
    remaining: Vec<(usize, Rc<[Alternative]>)>,
}

/// The part of one chain that survived: some whole steps, and a part of the next step, as far as it is chosen.
#[derive(Clone)]
struct Alternative {
    whole_steps: usize,
    /// Lines for which the part of the torn step has been chosen.
    chosen_lines: Vec<u64>,
    /// Chunks of the torn step that survived.
    torn: Vec<usize>,
}

/// The choices made so far at one crash point.
pub(super) struct Branches<'c> {
    machine: &'c Machine<'c>,
    choices: &'c Choices,
    /// The chains that touch each line.
    chains_of: LineMap<Vec<usize>>,
    /// In the order of the choices: a later entry for a chain replaces an earlier one.
    chosen: Vec<(usize, Rc<[Alternative]>)>,
    /// The options of lines that are independent of the choices for other lines.
    independent: RefCell<LineMap<Rc<[LineOption]>>>,
}

/// A line has too many possible contents, or its contents depend on other lines in a way that is not enumerated.
pub(super) struct TooMany;

impl<'c> Branches<'c> {
    pub(super) fn new(machine: &'c Machine<'c>, choices: &'c Choices) -> Self {
        let mut chains_of: LineMap<Vec<usize>> = LineMap::default();
        for (number, chain) in choices.chains().iter().enumerate() {
            for chunk in chain.steps().iter().flatten() {
                let chains = chains_of.entry(chunk.line()).or_default();
                if chains.last() != Some(&number) {
                    chains.push(number);
                }
            }
        }
        Self { machine, choices, chains_of, chosen: Vec::new(), independent: RefCell::default() }
    }

    /// The contents that the line may have; `None` if only its durable content is possible.
    pub(super) fn options(&self, line: u64) -> Result<Option<Rc<[LineOption]>>, TooMany> {
        if let Some(known) = self.independent.borrow().get(&line) {
            return Ok(Some(Rc::clone(known)));
        }
        let Some(chains) = self.chains_of.get(&line) else {
            return Ok(None);
        };
        // Then legality is known of whole images only.
        if self.machine.has_order_across_lines() {
            return Err(TooMany);
        }
        let is_independent = chains.iter().all(|&chain| self.choices.chains()[chain].is_within(line));
        let options: Rc<[LineOption]> = self.combine(line, chains, is_independent)?.into();
        if is_independent {
            self.independent.borrow_mut().insert(line, Rc::clone(&options));
        }
        Ok(Some(options))
    }

    /// The durable content of the line.
    pub(super) fn durable_line(&self, line: u64) -> &Line {
        self.machine.durable_line(line)
    }

    /// Whether every image that `inner` can make can be made here too: each content that one of `lines` may have there is possible
    /// here, and the lines are independent here.
    pub(super) fn include(&self, inner: &Branches<'_>, mut lines: impl Iterator<Item = u64>) -> bool {
        let is_product = |chain: &Chain| chain.steps().len() == 1 || chain.is_within_one_line();
        if !self.choices.chains().iter().all(is_product) {
            return false;
        }
        let contents = |line: u64| -> Option<bool> {
            let there = inner.options(line).ok()?;
            let Some(here) = self.options(line).ok()? else {
                let durable = self.durable_line(line);
                return Some(match there {
                    Some(there) => there.iter().all(|option| option.content == *durable),
                    None => inner.durable_line(line) == durable,
                });
            };
            let may_be = |content: &Line| here.iter().any(|option| option.content == *content);
            Some(match there {
                Some(there) => there.iter().all(|option| may_be(&option.content)),
                None => may_be(inner.durable_line(line)),
            })
        };
        lines.all(|line| contents(line).unwrap_or(false))
    }

    /// Chooses that option in addition to the earlier choices.
    pub(super) fn choose(&mut self, option: &LineOption) {
        self.chosen.extend(option.remaining.iter().cloned());
    }

    /// The number of choices made, for [`undo_to`](Self::undo_to).
    pub(super) const fn depth(&self) -> usize {
        self.chosen.len()
    }

    /// Undoes all choices after that depth.
    pub(super) fn undo_to(&mut self, depth: usize) {
        self.chosen.truncate(depth);
    }

    /// The chunks that survive by the choices made, with as few others as possible.
    pub(super) fn kept(&self) -> Vec<Chunk> {
        let mut kept = Vec::new();
        for (at, (chain, alternatives)) in self.chosen.iter().enumerate() {
            let number = *chain;
            let chain = &self.choices.chains()[number];
            // A chain of one line is chosen once, with its line.
            let is_replaced = !chain.is_within_one_line()
                && self.chosen[at + 1..].iter().any(|(later, _)| *later == number);
            if !is_replaced {
                alternatives[0].append_kept(chain, &mut kept);
            }
        }
        kept
    }

    /// The product of the parts of all chains that may have survived on the line.
    fn combine(&self, line: u64, chains: &[usize], is_independent: bool) -> Result<Vec<LineOption>, TooMany> {
        let mut combined = vec![(Vec::new(), Vec::new())];
        for &chain in chains {
            let views: Vec<_> = self.views(chain, line)?.into_iter().map(View::shared).collect();
            if combined.len().saturating_mul(views.len()) > MAX_OPTIONS {
                return Err(TooMany);
            }
            let extend = |(chunks, remaining): &(Vec<Chunk>, Vec<_>), view: &(Vec<Chunk>, Rc<_>)| {
                let mut chunks = chunks.clone();
                chunks.extend_from_slice(&view.0);
                let mut remaining = remaining.clone();
                remaining.push((chain, Rc::clone(&view.1)));
                (chunks, remaining)
            };
            combined = combined.iter().flat_map(|so_far| views.iter().map(|v| extend(so_far, v))).collect();
        }
        let durable = self.machine.durable_line(line);
        let mut options: Vec<LineOption> = Vec::with_capacity(combined.len());
        let mut seen = PrintSet::default();
        for (mut chunks, remaining) in combined {
            self.machine.enforce_word_order(&mut chunks);
            chunks.sort_by_key(|chunk| chunk.event);
            let mut content = *durable;
            chunks.iter().for_each(|chunk| chunk.apply(&mut content));
            // Where no other line depends on the choice, equal contents are one option.
            if !is_independent || seen.insert(fingerprint(line, &content)) {
                options.push(LineOption { content, remaining });
            }
        }
        Ok(options)
    }

    /// The parts of one chain that may have survived on the line; alternatives that agree on the line are grouped.
    fn views(&self, chain: usize, line: u64) -> Result<Vec<View>, TooMany> {
        let chosen = self.chosen.iter().rev().find(|(number, _)| *number == chain);
        let chain = &self.choices.chains()[chain];
        let every = (0..=chain.steps().len()).map(Alternative::whole);
        let alternatives = chosen.map_or_else(|| every.collect(), |(_, alternatives)| alternatives.to_vec());
        let is_within = chain.is_within(line);
        let mut views: Vec<View> = Vec::new();
        let mut by_chunks: HashMap<Vec<Survivor>, usize> = HashMap::new();
        for alternative in alternatives {
            for part in alternative.parts(chain, line, is_within)? {
                let mut chunks = Vec::new();
                part.append_kept(chain, &mut chunks);
                if is_within {
                    // Each part of such a chain has a different content.
                    views.push(View { chunks, alternatives: vec![part] });
                    continue;
                }
                chunks.retain(|chunk| chunk.line() == line);
                let key = chunks.iter().map(Chunk::as_survivor).collect();
                let view = *by_chunks.entry(key).or_insert_with(|| {
                    views.push(View { chunks, alternatives: Vec::new() });
                    views.len() - 1
                });
                views[view].alternatives.push(part);
            }
            if views.len() > MAX_OPTIONS {
                return Err(TooMany);
            }
        }
        Ok(views)
    }
}

/// A part of a chain that may have survived on one line, and the alternatives that contain it.
struct View {
    chunks: Vec<Chunk>,
    alternatives: Vec<Alternative>,
}

impl View {
    fn shared(self) -> (Vec<Chunk>, Rc<[Alternative]>) {
        (self.chunks, self.alternatives.into())
    }
}

impl Alternative {
    const fn whole(whole_steps: usize) -> Self {
        Self { whole_steps, chosen_lines: Vec::new(), torn: Vec::new() }
    }

    /// The alternative with each possible part of the torn step on the line, if that part has not been chosen yet.
    fn parts(self, chain: &Chain, line: u64, is_within: bool) -> Result<Vec<Self>, TooMany> {
        let step = chain.steps().get(self.whole_steps).map_or(&[][..], Vec::as_slice);
        let here: Vec<Lane<'_>> = lanes(step).filter(|lane| lane.chunks[0].line() == line).collect();
        if here.is_empty() || self.chosen_lines.contains(&line) {
            return Ok(vec![self]);
        }
        let all = here.iter().fold(1, |all: usize, lane| all.saturating_mul(lane.parts() + 1));
        if all > MAX_OPTIONS {
            return Err(TooMany);
        }
        // The whole step is covered by the alternative with one more whole step.
        let parts = if is_within { 0..all - 1 } else { 0..all };
        let with_part = |mut part: usize| {
            let mut chosen = self.clone();
            chosen.chosen_lines.push(line);
            for lane in &here {
                let ways = lane.parts() + 1;
                chosen.torn.extend(lane.part(part % ways));
                part /= ways;
            }
            chosen
        };
        Ok(parts.map(with_part).collect())
    }

    fn append_kept(&self, chain: &Chain, kept: &mut Vec<Chunk>) {
        kept.extend(chain.steps()[..self.whole_steps].iter().flatten());
        if let Some(step) = chain.steps().get(self.whole_steps) {
            kept.extend(self.torn.iter().map(|&chunk| step[chunk]));
        }
    }
}
