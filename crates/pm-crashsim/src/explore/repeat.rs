//! Repeating one crash of a run, by its name.

use super::examined::Examined;
use super::failure::Failure;
use super::session::{Point, Session};
use crate::choices::Choices;
use crate::image::Image;
use crate::machine::Machine;
use crate::trace::{EventKind, Trace};

impl<A> Session<'_, A> {
    /// Goes to where the run was crashed, wherever that is, and crashes it there. A run that has no such crash is left
    /// as it is.
    pub(super) fn replay_in(
        &mut self,
        start: &Image,
        trace: &Trace,
        level: usize,
        already_acked: usize,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let explorer = self.subject.explorer;
        let crashes = explorer.replay.as_ref().map_or(&[][..], |id| &id.crashes);
        let Some((crash, events)) =
            crashes.get(level).and_then(|crash| Some((crash, trace.events_at(crash.position)?)))
        else {
            return Ok(());
        };
        let mut machine = Machine::new(explorer.rules, start, trace);
        (0..events).for_each(|event| machine.step(event));
        let choices = Choices::of(&machine);
        let Some(mut kept) = crash.kept(&choices) else {
            return Ok(());
        };
        let acks = trace.events()[..events].iter().filter(|event| matches!(event.kind, EventKind::Ack));
        let (acked, visit) = (already_acked + acks.count(), self.visit());
        let is_after_kill = level == 0 && explorer.replay.as_ref().is_some_and(|id| !id.kills.is_empty());
        let point = Point { machine: &machine, events, acked, level, is_after_kill, visit, outer: None };
        let tried = self.covered(&point);
        tried.points += 1;
        tried.legal += 1;
        tried.tried += 1;
        let image = machine.image(&mut kept);
        let recovered = self.recover(&image, &point, crashes.len() - level - 1, None);
        let recovered = recovered.map_err(|failure| Self::blame(failure, &point, &choices, &kept))?;
        examined.extend(recovered.lines);
        Ok(())
    }
}
