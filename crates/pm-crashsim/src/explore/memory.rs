//! What is remembered of recoveries that were run, in one run's exploration and over those of several schedules.

use super::states::States;
use crate::line::LineHasher;
use crate::memo::{Memo, Visits};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// What recoveries read and where that led, and which contents they started from.
#[derive(Default)]
pub(crate) struct Memory {
    /// By depth of crashes.
    memos: Vec<Memo>,
    /// Numbered over all runs, as the memos are for all.
    pub(super) visits: Visits,
    /// Which contents, after which acknowledgements, were recovered from, and how many more crashes were tried inside.
    /// Images are told apart by their fingerprints: all are over one base.
    tried_inside: HashMap<(u128, usize), usize, BuildHasherDefault<LineHasher>>,
    /// The states that kills left, after which acknowledgements, and how many kills could follow.
    killed: HashMap<(u128, usize), usize>,
    /// Shared with whoever explores another part of the run.
    states: Arc<States>,
}

/// What a run acknowledged.
#[derive(Clone, Copy)]
pub(crate) struct History<'h, A> {
    pub(crate) acked: &'h [A],
    /// For each count of acknowledgements, from none to all, a number that stands for just these in this order.
    pub(crate) numbers: &'h [usize],
}

impl Memory {
    /// For another part of the same run: what recoveries found is known to both, how they came to it is not.
    pub(super) fn sharing_states(other: &Self) -> Self {
        Self { states: Arc::clone(&other.states), ..Self::default() }
    }

    /// What recoveries found.
    pub(super) const fn states(&self) -> &Arc<States> {
        &self.states
    }

    /// What recoveries read, after that many crashes before the last.
    pub(super) fn memo(&mut self, level: usize) -> &mut Memo {
        if self.memos.len() <= level {
            self.memos.resize_with(level + 1, Memo::default);
        }
        &mut self.memos[level]
    }

    /// Notes that the contents are recovered from, with up to `inside` crashes of the recovery. Whether that is news.
    pub(super) fn is_new(&mut self, fingerprint: u128, history: usize, inside: usize) -> bool {
        let key = (fingerprint, history);
        let is_new = self.tried_inside.get(&key).is_none_or(|&tried| tried < inside);
        if is_new {
            self.tried_inside.insert(key, inside);
        }
        is_new
    }

    /// Notes that a process is killed in that state, and that up to `kills` may be in all. Whether that is news.
    pub(super) fn is_new_kill(&mut self, fingerprint: u128, history: usize, kills: usize) -> bool {
        let tried = self.killed.entry((fingerprint, history)).or_default();
        let is_new = *tried < kills;
        *tried = kills.max(*tried);
        is_new
    }

    /// Notes that the contents were recovered from.
    pub(super) fn note_recovered(&mut self, fingerprint: u128, history: usize) {
        self.tried_inside.entry((fingerprint, history)).or_default();
    }

    /// How many different contents were recovered from. The same ones after other acknowledgements count again.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub(crate) fn images(&self) -> u64 {
        self.tried_inside.len() as u64
    }
}
