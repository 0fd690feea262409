//! The name of one sequence of crashes: `px86-line:0:3.17/1.4` is model, seed, and for each crash its point and
//! the number of its choice there.

use crate::Model;
use core::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplayId {
    pub(super) model: Model,
    pub(super) seed: u64,
    pub(super) crashes: Vec<ReplayCrash>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplayCrash {
    /// Counted from 0, in the order of the run.
    pub(super) point: u64,
    /// The number in that point's plan.
    pub(super) choice: u64,
}

impl ReplayId {
    /// Reads what [`Display`](fmt::Display) wrote; nothing for anything else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (model, rest) = text.split_once(':')?;
        let (seed, path) = rest.split_once(':')?;
        let model = Model::ALL.into_iter().find(|known| known.name() == model)?;
        let crashes = path.split('/').map(ReplayCrash::parse).collect::<Option<Vec<_>>>()?;
        Some(Self { model, seed: seed.parse().ok()?, crashes })
    }
}

impl ReplayCrash {
    fn parse(text: &str) -> Option<Self> {
        let (point, choice) = text.split_once('.')?;
        Some(Self { point: point.parse().ok()?, choice: choice.parse().ok()? })
    }
}

impl fmt::Display for ReplayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.model, self.seed)?;
        for (number, crash) in self.crashes.iter().enumerate() {
            let separator = if number == 0 { "" } else { "/" };
            write!(f, "{separator}{}.{}", crash.point, crash.choice)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["px86-line:0:3.17", "chunk8:18446744073709551615:0.0/12.4095"] {
            assert_eq!(ReplayId::parse(text).map(|id| id.to_string()).as_deref(), Some(text));
        }
        for text in ["", "px86-line:0:", "px86-line:0:3", "z80:0:3.1", "page:-1:3.1", "page:0:3.1/"] {
            assert_eq!(ReplayId::parse(text), None, "{text}");
        }
    }
}
