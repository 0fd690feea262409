//! What events commit: which pending chunks become durable, and which are ordered before a later store.

use super::Machine;
use crate::Survivor;
use crate::chunk::Chunk;
use crate::line::index;
use crate::model::Model;
use crate::trace::EventKind;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What a fence, a locked instruction or an ordered flush makes durable: chunks of events before `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// Write-back stores of one unit: the snapshot that a flush took.
    Unit { unit: u64, before: usize },
    /// The non-temporal stores of one thread.
    NonTemporal { thread: u32, before: usize },
    /// With caches kept, what has left the store buffer.
    Cached { before: usize },
    /// What is ordered before an event before that one.
    Ordered { before: usize },
}

impl Machine<'_> {
    /// What the event makes durable before it takes effect.
    pub(super) fn due(&self, at: usize) -> impl Iterator<Item = Commit> {
        let event = &self.trace.events()[at];
        let (thread, drains) = (event.thread, self.drains(event));
        let of = |commits: &BTreeMap<u32, Vec<Commit>>| {
            commits.get(&thread).filter(|_| drains).cloned().unwrap_or_default()
        };
        // What another thread has seen has left the store buffer, and so has all that is before it.
        let before = match &self.observed {
            // Before another process runs, the store buffer runs empty.
            _ if drains || event.kind == EventKind::Kill => Some(usize::MAX),
            Some(observed) => observed.seen_by(event).map(|store| store + 1),
            None => None,
        };
        let ordered = before.filter(|_| self.has_ordered).map(|before| Commit::Ordered { before });
        let everything = match drains {
            true => self.everything(usize::MAX),
            false => before.and_then(|before| self.cached(before)),
        };
        let non_temporal = drains.then_some(Commit::NonTemporal { thread, before: usize::MAX });
        let reopened = matches!(event.kind, EventKind::Fence).then(|| self.reopened.clone());
        of(&self.ordered)
            .into_iter()
            .chain(reopened.into_iter().flatten())
            .chain(of(&self.flushed))
            .chain(ordered)
            .chain(everything)
            .chain(non_temporal)
    }

    /// With caches kept, a fence commits all that was stored through them, and what killed processes stored around them.
    pub(super) fn everything(&self, before: usize) -> Option<Commit> {
        (self.rules.model == Model::Eadr).then(|| Commit::Unit { unit: Model::Eadr.unit(0), before })
    }

    /// With caches kept, all that has left the store buffer is durable.
    pub(super) fn cached(&self, before: usize) -> Option<Commit> {
        (self.rules.model == Model::Eadr).then_some(Commit::Cached { before })
    }

    /// The pending chunks that the commit is about.
    pub(super) fn covered(&self, commit: Commit) -> impl Iterator<Item = &Chunk> {
        let unit = match commit {
            Commit::Unit { unit, .. } => self.write_back.get(&unit),
            Commit::Cached { .. } => self.write_back.get(&Model::Eadr.unit(0)),
            _ => None,
        };
        let (write_back, non_temporal) = match commit {
            Commit::Unit { .. } | Commit::Cached { .. } => (None, None),
            Commit::NonTemporal { .. } => (None, Some(&self.non_temporal)),
            Commit::Ordered { .. } => (Some(&self.write_back), Some(&self.non_temporal)),
        };
        let in_maps = write_back.into_iter().chain(non_temporal).flat_map(BTreeMap::values);
        let orphans =
            self.orphans(move |unit| matches!(commit, Commit::Unit { unit: flushed, .. } if flushed == unit));
        in_maps.chain(unit).flatten().chain(orphans).filter(move |chunk| match commit {
            Commit::Unit { before, .. } | Commit::Cached { before } => chunk.event < before,
            Commit::NonTemporal { thread, before } => {
                chunk.event < before && self.trace.events()[chunk.event].thread == thread
            }
            Commit::Ordered { before } => chunk.ordered_at < before,
        })
    }

    /// What must be durable too if all these pending chunks are: what was stored before to the same words, in the other way.
    fn older(&self, chunks: &[Chunk]) -> Vec<Chunk> {
        let mut older: Vec<Chunk> = Vec::new();
        if self.non_temporal.is_empty() || !self.rules.model.orders_words() {
            return older;
        }
        let mut known: HashSet<Survivor> = chunks.iter().map(Chunk::as_survivor).collect();
        // What goes the same way and is older is among these already. The loss of what is replaced is not seen.
        let replaces = |lost: &Chunk| {
            let later = chunks.iter().filter(|chunk| chunk.word == lost.word && chunk.event > lost.event);
            let masks = later.filter(|chunk| self.is_around(chunk)).fold(0, |all, chunk| all | chunk.mask);
            lost.mask & !masks == 0
        };
        // Most words are stored to in one way only.
        let is_mixed = |chunk: &&Chunk| {
            let around = self.non_temporal.get(&chunk.word).map_or(0, Vec::len);
            let all = self.pending_count.get(&chunk.word).map_or(0, |&count| index(count.into()));
            around > 0 && all > around
        };
        for chunk in chunks.iter().filter(is_mixed) {
            let is_around = self.is_around(chunk);
            let other_way = self.needed_by(chunk).filter(|older| self.is_around(older) != is_around);
            let seen = other_way.filter(|older| !is_around || !replaces(older));
            older.extend(seen.filter(|older| known.insert(older.as_survivor())));
        }
        let mut next = 0;
        while let Some(&chunk) = older.get(next) {
            older.extend(self.needed_by(&chunk).filter(|older| known.insert(older.as_survivor())));
            next += 1;
        }
        older
    }

    /// Whether it was stored around the cache.
    fn is_around(&self, chunk: &Chunk) -> bool {
        matches!(self.trace.events()[chunk.event].kind, EventKind::StoreNt { .. })
    }

    /// The pending chunks without which this one cannot be durable.
    fn needed_by(&self, chunk: &Chunk) -> impl Iterator<Item = Chunk> {
        let (chunk, model, is_around) = (*chunk, self.rules.model, self.is_around(chunk));
        let unit = self.write_back.get(&model.unit(chunk.offset()));
        let cached = unit.into_iter().flatten().filter(move |older| match (is_around, model) {
            (true, _) => older.word == chunk.word && older.mask & !chunk.mask != 0,
            (false, Model::Px86Loc) => {
                older.word == chunk.word || (chunk.in_pair && older.pair() == chunk.pair())
            }
            (false, _) => true,
        });
        let around = self.non_temporal.get(&chunk.word).into_iter().flatten();
        let is_older = move |older: &&Chunk| {
            older.event < chunk.event || (chunk.in_pair && older.in_pair && older.event == chunk.event)
        };
        cached.chain(around).filter(is_older).copied()
    }

    /// What the thread's flushes, or its fence, ordered before its next store is ordered before this one.
    pub(super) fn order(&mut self, at: usize, thread: u32) {
        for commit in self.ordered.remove(&thread).unwrap_or_default() {
            let covered: Vec<Chunk> = self.covered(commit).copied().collect();
            let older = self.older(&covered);
            let names: HashSet<Survivor> = covered.iter().chain(&older).map(Chunk::as_survivor).collect();
            self.has_ordered |= !names.is_empty();
            let pending = self.write_back.values_mut().chain(self.non_temporal.values_mut()).flatten();
            for chunk in pending.filter(|chunk| names.contains(&chunk.as_survivor())) {
                chunk.ordered_at = chunk.ordered_at.min(at);
            }
        }
    }

    /// Moves what the commit covers into the floor.
    pub(super) fn commit(&mut self, commit: Commit) {
        let mut durable = match commit {
            // What was stored in the other way is not looked for where there is none.
            Commit::Unit { unit, before } if self.non_temporal.is_empty() => self.take_unit(unit, before),
            _ => {
                let mut durable: Vec<Chunk> = self.covered(commit).copied().collect();
                durable.extend(self.older(&durable));
                self.take(&durable);
                durable
            }
        };
        let (lines, change) = self.merged(&mut durable);
        self.floor.absorb(lines, change);
        for chunk in &durable {
            self.note_gone(chunk);
        }
        for chunk in &durable {
            self.forget_older(chunk);
        }
        if commit == (Commit::Ordered { before: usize::MAX }) {
            self.has_ordered = false;
        }
    }

    /// Takes the oldest chunks out of a unit.
    fn take_unit(&mut self, unit: u64, before: usize) -> Vec<Chunk> {
        let Some(pending) = self.write_back.get_mut(&unit) else {
            return Vec::new();
        };
        let count = pending.partition_point(|chunk| chunk.event < before);
        let durable = pending.drain(..count).collect();
        if pending.is_empty() {
            self.write_back.remove(&unit);
        }
        durable
    }

    /// Takes these chunks out of those that are pending.
    fn take(&mut self, chunks: &[Chunk]) {
        let mut names: HashMap<(bool, u64), HashSet<Survivor>> = HashMap::new();
        for chunk in chunks {
            let is_around = self.is_around(chunk);
            let key = if is_around { chunk.word } else { self.rules.model.unit(chunk.offset()) };
            names.entry((is_around, key)).or_default().insert(chunk.as_survivor());
        }
        for ((is_around, key), names) in names {
            let pending_by = if is_around { &mut self.non_temporal } else { &mut self.write_back };
            if let Entry::Occupied(mut pending) = pending_by.entry(key) {
                pending.get_mut().retain(|chunk| !names.contains(&chunk.as_survivor()));
                if pending.get().is_empty() {
                    pending.remove();
                }
            }
        }
    }
}
