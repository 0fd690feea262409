//! Findings: the occasions that the lints found, one finding for each place.

use super::catalog::{Level, Lint, Lints};
use super::pending::Stored;
use crate::SourceLocation;
use crate::location::LocationId;
use crate::trace::{EventKind, Trace};
use core::fmt;
use std::collections::{BTreeMap, HashMap};

/// One place in the source at which a lint found something, with its first occasion.
///
/// `Display` prints it the way the compiler prints a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The lint.
    pub lint: Lint,
    /// Its level.
    pub level: Level,
    /// The place that is to blame.
    pub location: SourceLocation,
    /// The other places involved, in the order in which they ran.
    pub related: Vec<(Role, SourceLocation)>,
    /// The first of the bytes concerned; 0 for a fence.
    pub offset: u64,
    /// How many bytes; 0 for a fence.
    pub len_bytes: u64,
    /// The number of occasions on which it was found.
    pub count: usize,
    /// How often the place ran, in the runs in which it was found.
    pub runs: usize,
    /// The misuse, in one line.
    pub message: String,
    /// The remedy.
    pub suggestion: String,
}

/// The role of a place in a [`Finding`].
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

/// Merges findings of another run, place by place.
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

/// The text of all denied findings; `None` if there are none.
pub(crate) fn denied(findings: &[Finding]) -> Option<String> {
    let denied = findings.iter().filter(|finding| finding.level == Level::Deny);
    let stories: Vec<String> = denied.map(Finding::to_string).collect();
    (!stories.is_empty()).then(|| stories.join("\n"))
}

/// One occasion. Places are numbers of events.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) lint: Lint,
    pub(super) at: usize,
    pub(super) related: Vec<(Role, usize)>,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

/// The occasions of one moment: one for each event, with all words that it stored.
#[derive(Default)]
pub(super) struct Occasions(pub(super) BTreeMap<(Lint, usize), Raw>);

impl Occasions {
    /// Adds the bytes of `store` to the occasion.
    pub(super) fn add(&mut self, lint: Lint, at: usize, store: &Stored, related: &[(Role, usize)]) {
        let offset = store.chunk.offset() + u64::from(store.chunk.mask.trailing_zeros());
        let raw = self.0.entry((lint, at)).or_insert_with(|| {
            let related = related.to_vec();
            Raw { lint, at, related, offset, len_bytes: 0 }
        });
        raw.offset = raw.offset.min(offset);
        raw.len_bytes += u64::from(store.chunk.mask.count_ones());
    }
}

/// One finding for each lint and place, ordered by place.
pub(super) fn findings(trace: &Trace, lints: &Lints, mut found: Vec<Raw>) -> Vec<Finding> {
    found.sort_by_key(|raw| raw.at);
    let mut runs: HashMap<(LocationId, &str), usize> = HashMap::new();
    for event in trace.events() {
        *runs.entry((event.location, event.kind.name())).or_default() += 1;
    }
    let mut by_place: BTreeMap<(LocationId, Lint), Finding> = BTreeMap::new();
    for raw in &found {
        let event = &trace.events()[raw.at];
        let location = trace.location(event.location);
        let level = lints.level_at(raw.lint, location);
        if level == Level::Allow {
            continue;
        }
        let finding = by_place.entry((event.location, raw.lint)).or_insert_with(|| Finding {
            lint: raw.lint,
            level,
            location: location.clone(),
            related: raw.related.iter().map(|&(role, at)| (role, trace.location_of(at).clone())).collect(),
            offset: raw.offset,
            len_bytes: raw.len_bytes,
            count: 0,
            runs: runs[&(event.location, event.kind.name())],
            message: message(trace, raw),
            suggestion: suggestion(raw),
        });
        finding.count += 1;
    }
    let mut findings: Vec<Finding> = by_place.into_values().collect();
    findings.sort_by(|a, b| (&a.location, a.lint).cmp(&(&b.location, b.lint)));
    findings
}

fn message(trace: &Trace, raw: &Raw) -> String {
    let is_acked = raw.related.iter().any(|(role, _)| *role == Role::Acknowledged);
    let deadline = if is_acked { "the operation was acknowledged" } else { "the run ended" };
    let bytes = bytes(trace, raw);
    match raw.lint {
        Lint::UnflushedStore => format!("{bytes} were stored and not flushed before {deadline}"),
        Lint::UnfencedFlush => format!("{bytes} were flushed and not fenced before {deadline}"),
        Lint::UnfencedStore if matches!(trace.events()[raw.at].kind, EventKind::StoreNt { .. }) => {
            format!("{bytes} were stored around the cache and not fenced before {deadline}")
        }
        Lint::UnfencedStore => format!("{bytes} were stored and not fenced before {deadline}"),
        Lint::EarlyFlush => format!("{bytes} were flushed before they were stored, and not after"),
        Lint::StoreInFlight => {
            format!("{bytes} were stored to a line between its flush and the fence, which may miss them")
        }
        Lint::UnpersistedRead => {
            let effect = if is_acked { "acknowledged" } else { "made durable" };
            format!(
                "{bytes} were read that another thread had not made durable, and what came of it was {effect}"
            )
        }
        Lint::RedundantFlush => format!("{bytes} were flushed with nothing to write back"),
        Lint::RedundantFence => "a fence had nothing to wait for".to_owned(),
    }
}

fn suggestion(raw: &Raw) -> String {
    let (offset, len_bytes) = (raw.offset, raw.len_bytes);
    match raw.lint {
        Lint::UnflushedStore if raw.related.iter().any(|(role, _)| *role == Role::Fenced) => {
            format!("a fence alone writes nothing back: flush({offset:#x}, {len_bytes}) before it")
        }
        Lint::UnflushedStore => format!("persist({offset:#x}, {len_bytes}) after the last store"),
        Lint::UnfencedFlush => "fence on the same thread, after the last flush".to_owned(),
        Lint::UnfencedStore => "fence on the same thread, after the last store".to_owned(),
        Lint::EarlyFlush => "move the flush after the store, and the fence after the flush".to_owned(),
        Lint::StoreInFlight => {
            format!("flush({offset:#x}, {len_bytes}) before the fence, or store after the fence")
        }
        Lint::UnpersistedRead => {
            format!(
                "persist({offset:#x}, {len_bytes}) before acting on what was read, or before publishing it"
            )
        }
        Lint::RedundantFlush => "remove it, or flush once after the last store".to_owned(),
        Lint::RedundantFence => "remove it, or let one fence serve several flushes".to_owned(),
    }
}

/// The bytes of the occasion, as a part of the store where they are.
fn bytes(trace: &Trace, raw: &Raw) -> String {
    let Raw { offset, len_bytes, .. } = *raw;
    let event = &trace.events()[raw.at].kind;
    match event.extent().filter(|_| event.is_store()) {
        Some((_, whole)) if whole > len_bytes => format!("{len_bytes} of {whole} bytes from {offset:#x}"),
        _ => format!("{len_bytes} bytes from {offset:#x}"),
    }
}
