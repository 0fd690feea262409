//! Exploring a trace that is there already, of whatever ran.

use super::failure::Failure;
use super::memory::{History, Memory};
use super::replay::ReplayId;
use super::run::{Crash, Verdict};
use super::{Coverage, Explorer};
use crate::TraceFile;
use crate::trace::EventKind;

impl Explorer {
    /// Explores under the model of the file's run, and with its reading of the manuals.
    #[must_use]
    pub fn of(file: &TraceFile) -> Self {
        let rules = file.rules();
        Self::new(rules.model).strict_ack(rules.strict_ack).exchange_fences(rules.exchange_fences)
    }

    /// As [`explore`](Self::explore), for a run that was recorded before: runs `check` on everything that a crash of it can
    /// leave. [`Crash::acked`] has a `()` for each acknowledgement in the trace.
    ///
    /// # Errors
    /// The first failure found.
    pub fn explore_trace<V: Verdict>(
        &self,
        file: &TraceFile,
        check: impl Fn(&Crash<'_, ()>) -> V + Sync,
    ) -> Result<Coverage, Box<Failure>> {
        let acks = file.trace().events().iter().filter(|event| matches!(event.kind, EventKind::Ack)).count();
        let acked = vec![(); acks];
        let histories: Vec<usize> = (0..=acks).collect();
        let history = History { acked: &acked, numbers: &histories };
        let memory = &mut Memory::default();
        self.explore_record(file.start(), file.trace(), history, memory, &check, Coverage::default())
    }

    /// As [`replay`](Self::replay), for names that somebody typed: nothing if it is no name, or of another model.
    #[must_use]
    pub fn try_replay(self, id: &str) -> Option<Self> {
        let parsed = ReplayId::parse(id)?;
        (parsed.model == self.rules.model).then(|| self.replay(id))
    }
}
