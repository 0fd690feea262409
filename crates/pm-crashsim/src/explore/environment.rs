//! Replaying one crash by an environment variable, in a test that knows nothing of it.

use super::replay::ReplayId;
use super::{Coverage, Explorer, Failure};
use std::env;

/// The environment variable that makes explorations replay.
pub(crate) const REPLAY_VARIABLE: &str = "PM_CRASHSIM_REPLAY";

impl Explorer {
    /// The crash that is to be repeated, unless the test says itself which. An empty variable is none.
    ///
    /// # Panics
    /// When the variable holds no name of a crash: exploring all, or nothing, would not be what was asked for.
    pub(super) fn wanted_by_environment(&self) -> Option<String> {
        let id = env::var(REPLAY_VARIABLE).ok().filter(|id| self.replay.is_none() && !id.is_empty())?;
        assert!(ReplayId::parse(&id).is_some(), "{REPLAY_VARIABLE}={id:?} names no crash");
        Some(id)
    }

    /// Repeats the crash if this exploration has it; a test may explore much else.
    pub(super) fn replay_if_met(
        &self,
        id: &str,
        search: impl Fn(&Self) -> Result<Coverage, Box<Failure>>,
    ) -> Result<Coverage, Box<Failure>> {
        let is_of_this_model = ReplayId::parse(id).is_some_and(|id| id.model == self.rules.model);
        if !is_of_this_model {
            skip(id, "it is of another model");
            return Ok(Coverage::default().skipped());
        }
        match search(&self.clone().replay(id)) {
            // The operation ran, and what it did has no such crash.
            Err(failure) if failure.crashes.is_empty() && !failure.is_of_operation => {
                skip(id, &failure.message);
                Ok(failure.coverage.skipped())
            }
            repeated => repeated,
        }
    }
}

fn skip(id: &str, reason: &str) {
    eprintln!("pm-crashsim: {REPLAY_VARIABLE}={id} is not replayed here: {reason}");
}
