//! What a lint found, and how that reads.

use super::{Level, Lint};
use crate::SourceLocation;
use core::fmt;

/// One place in the source at which a lint found something, with the first occasion on which it did.
///
/// `Display` prints it the way the compiler prints a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What is wrong.
    pub lint: Lint,
    /// How serious that is.
    pub level: Level,
    /// The place that is to blame.
    pub location: SourceLocation,
    /// The other places that play a part, in the order in which they ran.
    pub related: Vec<(Role, SourceLocation)>,
    /// The first of the bytes concerned; 0 for a fence.
    pub offset: u64,
    /// How many bytes; 0 for a fence.
    pub len_bytes: u64,
    /// On how many occasions it was found.
    pub count: usize,
    /// How often the place ran, in the runs in which it was found.
    pub runs: usize,
    /// What happened, in one line.
    pub message: String,
    /// What to do, in plain words.
    pub suggestion: String,
}

/// The part that a place plays in a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Role {
    /// The bytes were stored there.
    Stored,
    /// The line was flushed there.
    Flushed,
    /// A fence stands there.
    Fenced,
    /// The bytes were read there.
    Read,
    /// The effect was stored there.
    ActedUpon,
    /// The operation was acknowledged there.
    Acknowledged,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stored => "stored",
            Self::Flushed => "flushed",
            Self::Fenced => "fenced",
            Self::Read => "read",
            Self::ActedUpon => "acted upon",
            Self::Acknowledged => "acknowledged",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.level == Level::Deny { "error" } else { "warning" };
        writeln!(f, "{severity}[{}]: {}", self.lint, self.message)?;
        writeln!(f, "  --> {}", self.location)?;
        for (role, location) in &self.related {
            writeln!(f, "   = {role} at {location}")?;
        }
        if self.runs > 1 {
            writeln!(f, "   = on {} of {} occasions", self.count, self.runs)?;
        }
        write!(f, "   = help: {}", self.suggestion)
    }
}

/// Adds findings of another run to those there, place by place.
pub(crate) fn merge(into: &mut Vec<Finding>, more: Vec<Finding>) {
    for finding in more {
        let same = |known: &&mut Finding| (known.lint, &known.location) == (finding.lint, &finding.location);
        match into.iter_mut().find(same) {
            Some(known) => {
                known.count += finding.count;
                known.runs += finding.runs;
            }
            None => into.push(finding),
        }
    }
}

/// The story of what is denied, if anything is.
pub(crate) fn denied(findings: &[Finding]) -> Option<String> {
    let denied = findings.iter().filter(|finding| finding.level == Level::Deny);
    let stories: Vec<String> = denied.map(Finding::to_string).collect();
    (!stories.is_empty()).then(|| stories.join("\n"))
}
