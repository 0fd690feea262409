//! A crash as a drawing: the relevant lines side by side, the relevant events from top to bottom.

use crate::line::{LINE, lines};
use crate::model::{Chunk, Machine};
use crate::outcome::{CrashReport, PendingStore};
use crate::trace::EventKind;
use crate::{Model, SourceLocation};
use std::collections::BTreeSet;

/// The number of lines drawn: as many as fit on a terminal.
const LANES: usize = 4;
/// The numbers of rows drawn from the start and from the end, when there are more.
const FIRST_ROWS: usize = 12;
const LAST_ROWS: usize = 24;

pub(super) struct Timeline {
    /// The drawn lines, by the offset of their first byte, in order.
    pub(super) lanes: Vec<u64>,
    /// The number of relevant lines that were not drawn.
    pub(super) more_lines: usize,
    pub(super) rows: Vec<Row>,
}

/// One event, or several alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The number of the (first) event in the trace.
    pub(super) number: usize,
    /// The number of equal successive events; of a gap, the number of rows left out.
    pub(super) count: usize,
    pub(super) what: What,
    /// By lane.
    pub(super) cells: Vec<Cell>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Event {
        name: &'static str,
        /// The thread, if there are several.
        thread: Option<u32>,
        /// First byte and length.
        extent: Option<(u64, u64)>,
        location: SourceLocation,
    },
    /// Rows that were left out.
    Gap,
}

/// The effect of an event on one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// None; every store is durable.
    Durable,
    /// None; some store is not durable for certain.
    Pending,
    /// A store, with its fate.
    Stored(Fate),
    /// The line is flushed.
    Flushed,
    /// Everything pending became durable.
    Committed,
}

/// The fate of a store to one line when the crash happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was durable for certain.
    Durable,
    /// It had reached the medium, and the failure needs that.
    KeptEssential,
    /// It had reached the medium.
    Kept,
    Lost,
    /// Some of its words had reached the medium.
    Torn,
}

impl Timeline {
    /// Draws the lines with essential lost or kept stores.
    pub(super) fn of(crash: &CrashReport) -> Self {
        let matters = |store: &&PendingStore| store.is_essential || !crash.is_minimal;
        let essential = || crash.lost.iter().chain(crash.kept.iter().filter(matters));
        let mut lanes: Vec<u64> = Vec::new();
        let mut all = BTreeSet::new();
        for store in essential() {
            if all.insert(store.line_offset) && lanes.len() < LANES {
                lanes.push(store.line_offset);
            }
        }
        lanes.sort_unstable();
        let first = essential().map(|store| store.event).min().unwrap_or(0);
        let rows = if lanes.is_empty() { Vec::new() } else { rows(crash, &lanes, first) };
        Self { more_lines: all.len() - lanes.len(), rows: without_middle(rows), lanes }
    }
}

/// The events from `first` to the crash that concern the lanes.
fn rows(crash: &CrashReport, lanes: &[u64], first: usize) -> Vec<Row> {
    let record = &crash.record;
    let trace = record.trace();
    let mut machine = Machine::new(*record.rules(), record.start(), trace);
    let events = &trace.events()[..record.events()];
    let has_threads = events.iter().any(|event| event.thread != 0);
    let mut rows: Vec<Row> = Vec::new();
    let mut drawn_stores: Vec<(u64, u64)> = Vec::new();
    for (number, event) in events.iter().enumerate() {
        if number < first {
            machine.step(number);
            continue;
        }
        let before: Vec<bool> = lanes.iter().map(|&lane| is_pending(&machine, lane)).collect();
        machine.step(number);
        let cell = |(&lane, &was_pending): (&u64, &bool)| {
            let is_pending = is_pending(&machine, lane);
            let touches = touches(event.kind, lane, record.rules().model);
            match (was_pending, is_pending) {
                _ if touches && event.kind.is_store() => Cell::Stored(fate(crash, number, lane)),
                _ if touches && event.kind.is_flush() => Cell::Flushed,
                (true, false) => Cell::Committed,
                (_, true) => Cell::Pending,
                (false, false) => Cell::Durable,
            }
        };
        let cells: Vec<Cell> = lanes.iter().zip(&before).map(cell).collect();
        let is_drawn = match event.kind {
            EventKind::Ack | EventKind::Kill => true,
            EventKind::Fence | EventKind::FullFence => before.contains(&true),
            // A flush of another part of a store to a lane: it should have covered the lane too.
            _ if event.kind.is_flush() && shares_a_store(event.kind, &drawn_stores, record.rules().model) => {
                true
            }
            _ => cells.iter().any(|cell| !matches!(cell, Cell::Durable | Cell::Pending)),
        };
        if !is_drawn {
            continue;
        }
        if event.kind.is_store() {
            drawn_stores.extend(event.kind.extent());
        }
        let what = What::Event {
            name: if matches!(event.kind, EventKind::Ack) { "ack" } else { event.kind.name() },
            thread: has_threads.then_some(event.thread),
            extent: event.kind.extent(),
            location: trace.location(event.location).clone(),
        };
        match rows.last_mut() {
            Some(last) if last.what == what && last.cells == cells => last.count += 1,
            _ => rows.push(Row { number, count: 1, what, cells }),
        }
    }
    rows
}

fn without_middle(mut rows: Vec<Row>) -> Vec<Row> {
    if rows.len() > FIRST_ROWS + LAST_ROWS + 1 {
        let end = rows.len() - LAST_ROWS;
        let gap = Row {
            number: rows[FIRST_ROWS].number,
            count: end - FIRST_ROWS,
            what: What::Gap,
            cells: rows[end - 1].cells.iter().map(|cell| cell.after()).collect(),
        };
        rows.splice(FIRST_ROWS..end, [gap]);
    }
    rows
}

impl Cell {
    /// The state of the line after it.
    const fn after(self) -> Self {
        match self {
            Self::Durable | Self::Committed => Self::Durable,
            Self::Pending | Self::Stored(_) | Self::Flushed => Self::Pending,
        }
    }
}

fn is_pending(machine: &Machine<'_>, lane: u64) -> bool {
    let is_of_lane = |chunk: &Chunk| chunk.line() * LINE as u64 == lane;
    machine.write_back().chain(machine.non_temporal()).flatten().any(is_of_lane)
}

/// Whether the event stores to the line, or flushes it, together with its unit under the model.
fn touches(kind: EventKind, lane: u64, model: Model) -> bool {
    kind.extent().is_some_and(|(offset, len_bytes)| match kind.is_flush() {
        true => model.units(offset, len_bytes).contains(&model.unit(lane)),
        false => lines(offset, len_bytes).contains(&(lane / LINE as u64)),
    })
}

/// Whether the flush covers a part of one of the stores.
fn shares_a_store(flush: EventKind, stores: &[(u64, u64)], model: Model) -> bool {
    let units = |(offset, len_bytes): (u64, u64)| model.units(offset, len_bytes);
    flush.extent().map(units).filter(|reached| !reached.is_empty()).is_some_and(|reached| {
        let mut stores = stores.iter().map(|&store| units(store));
        stores.any(|store| store.start < reached.end && reached.start < store.end)
    })
}

fn fate(crash: &CrashReport, event: usize, lane: u64) -> Fate {
    let is_it = |store: &&PendingStore| (store.event, store.line_offset) == (event, lane);
    match (crash.lost.iter().find(is_it), crash.kept.iter().find(is_it)) {
        (Some(_), Some(_)) => Fate::Torn,
        (Some(_), None) => Fate::Lost,
        (None, Some(store)) if store.is_essential => Fate::KeptEssential,
        (None, Some(_)) => Fate::Kept,
        (None, None) => Fate::Durable,
    }
}
