//! The one flush or fence that would repair a failure, if there is one.
//!
//! The candidates follow from the crash: a flush of a lost store, a fence after a flush of it, a fence before a store that was kept too early. Each
//! is injected into the runs, which are explored again: fences first, then flushes, then both. The first with which the check passes is the repair.

use super::settings::Settings;
use crate::outcome::{CrashReport, Failure, PendingStore, Repair};
use crate::trace::{EventKind, Trace};
use crate::{Injection, InjectionKind, Model, SourceLocation};

/// The number of candidates tried.
const CANDIDATES: usize = 24;
/// The bounds of the explorations that try them.
const CHOICES_PER_POINT: u64 = 256;
const NESTED_CHOICES_PER_POINT: u64 = 32;

/// The first candidate with which an exploration passes.
pub(super) fn find_repair(
    settings: &Settings,
    failure: &Failure,
    passes: impl Fn(&Settings) -> bool,
) -> Option<Repair> {
    let mut smaller = Settings {
        choices_per_point: settings.choices_per_point.min(CHOICES_PER_POINT),
        nested_choices_per_point: settings.nested_choices_per_point.min(NESTED_CHOICES_PER_POINT),
        shrink: false,
        ..settings.clone()
    };
    let candidates = candidates(failure, settings.rules.model).into_iter().take(CANDIDATES);
    candidates.take_while(|_| !settings.time.is_spent()).find(|repair| {
        smaller.edits.injected.clone_from(&settings.edits.injected);
        smaller.edits.injected.insert(repair.injection.clone());
        passes(&smaller)
    })
}

/// The candidates, the simplest first.
fn candidates(failure: &Failure, model: Model) -> Vec<Repair> {
    let mut found: Vec<Repair> = Vec::new();
    let mut add = |kind, location: &SourceLocation, short_flush| {
        let injection = Injection { kind, location: location.clone() };
        if !found.iter().any(|known| known.injection == injection) {
            found.push(Repair { injection, short_flush });
        }
    };
    let lost = || failure.crashes.iter().flat_map(|crash| crash.lost.iter().map(move |store| (crash, store)));
    for (crash, store) in lost() {
        let trace = crash.record.trace();
        for at in flushes_after(crash, store).filter(|at| covers(trace, *at, store.line_offset, model)) {
            add(InjectionKind::FenceAfterFlush, trace.location_of(at), None);
        }
        if matches!(trace.events()[store.event].kind, EventKind::StoreNt { .. }) {
            add(InjectionKind::FenceAfterStore, &store.location, None);
        }
    }
    for store in failure.crashes.iter().flat_map(|crash| &crash.kept).filter(|store| store.is_essential) {
        add(InjectionKind::FenceBeforeStore, &store.location, None);
    }
    for kind in [InjectionKind::FlushAfterStore, InjectionKind::PersistAfterStore] {
        for (crash, store) in lost() {
            add(kind, &store.location, short_flush(crash, store, model));
        }
    }
    found
}

/// The numbers of the flushes between a store and the crash.
fn flushes_after<'c>(crash: &'c CrashReport, store: &PendingStore) -> impl Iterator<Item = usize> + use<'c> {
    let record = &crash.record;
    let events = store.event + 1..record.events();
    events.filter(|&at| record.trace().events()[at].kind.is_flush())
}

/// Whether the flush covers the unit of that byte.
fn covers(trace: &Trace, flush: usize, offset: u64, model: Model) -> bool {
    let extent = trace.events()[flush].kind.extent();
    extent.is_some_and(|(start, len_bytes)| model.units(start, len_bytes).contains(&model.unit(offset)))
}

/// A flush that covers a part of the store, but not the lost part.
fn short_flush(crash: &CrashReport, store: &PendingStore, model: Model) -> Option<(SourceLocation, u64)> {
    let trace = crash.record.trace();
    let (start, len_bytes) = trace.events()[store.event].kind.extent()?;
    let reaches = |at: usize, offset| covers(trace, at, offset, model);
    let is_short = |at: &usize| {
        !reaches(*at, store.offset) && (start..start + len_bytes).any(|offset| reaches(*at, offset))
    };
    let at = flushes_after(crash, store).find(is_short)?;
    Some((trace.location_of(at).clone(), store.offset))
}
