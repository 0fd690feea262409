//! What is found event by event, made into one finding a place.

use super::pending::Stored;
use super::{Finding, Level, Lint, Lints, Role, words};
use crate::location::LocationId;
use crate::trace::Trace;
use std::collections::{BTreeMap, HashMap};

/// One occasion. The places are numbers of events.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) lint: Lint,
    pub(super) at: usize,
    pub(super) related: Vec<(Role, usize)>,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

/// Occasions of one moment, of which each event has one, however many words it stored.
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

/// One finding for each lint and place, in the order of the places.
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
            message: words::message(trace, raw),
            suggestion: words::suggestion(raw),
        });
        finding.count += 1;
    }
    let mut findings: Vec<Finding> = by_place.into_values().collect();
    findings.sort_by(|a, b| (&a.location, a.lint).cmp(&(&b.location, b.lint)));
    findings
}
