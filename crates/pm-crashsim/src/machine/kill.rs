//! A process killed: what the caches keep of it, and what its flushes promise no more.

use super::Machine;
use super::commit::Commit;
use crate::chunk::{Chunk, NEVER};
use crate::model::Model;
use crate::observed::Observed;
use crate::trace::Trace;

impl<'t> Machine<'t> {
    /// The same state, of a record that begins with the same events.
    pub(crate) fn on<'o>(&self, trace: &'o Trace) -> Machine<'o>
    where
        't: 'o,
    {
        let observed = self.observed.clone().or_else(|| Observed::of(trace));
        Machine { trace, observed, ..self.clone() }
    }

    /// The state if the process is killed now, after that many events.
    pub(crate) fn killed(&self, events: usize) -> Self {
        let mut killed = self.clone();
        killed.kill(events);
        killed
    }

    /// The caches stay, and the flushes in flight promise nothing any more. Store buffers run empty, so that with caches
    /// that survive all is durable, and without them all that is ordered before a store.
    pub(super) fn kill(&mut self, at: usize) {
        self.commit(Commit::Ordered { before: NEVER });
        self.flushed.clear();
        self.ordered.clear();
        let cached: Vec<u64> = self.write_back.keys().copied().collect();
        let commits = cached.into_iter().map(|unit| Commit::Unit { unit, before: at });
        match self.rules.model {
            Model::Eadr => self.commit(Commit::Cached { before: at }),
            Model::Page => self.reopened = commits.collect(),
            Model::Px86Line | Model::Px86Loc | Model::Chunk8 => {}
        }
        self.killed = at;
    }

    /// Non-temporal stores of killed processes, in these units: no thread is left whose fence waits for them, but a flush
    /// of what is visible reaches them.
    pub(super) fn orphans(&self, is_wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = &Chunk> {
        let pending = self.non_temporal.values().take_while(|_| self.killed > 0).flatten();
        pending.filter(move |chunk| {
            chunk.event < self.killed && is_wanted(self.rules.model.unit(chunk.offset()))
        })
    }
}
