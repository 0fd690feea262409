//! The findings of a check, as text and as JSON.

use crate::report::{field, say};
use core::ops::Range;
use pm_alloc::format::COPY_START;
use pm_alloc::{Corruption, CorruptionKind, Heap, HeapInspection};
use pm_core::{HeaderState, Pmem, Pool, Root};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// The exit code for corruption that a check found, or a repair left.
pub(crate) const CORRUPTED: u8 = 3;

/// The end of a command that has found corruption while it did something else: prints the error, and returns the exit code for it. Without a reader of standard error
/// the exit code says it.
pub(crate) fn end_with_corruption(error: &miette::Report, json: bool) -> ExitCode {
    let error =
        if json { pm_cli_common::error_object(error).to_string() } else { format!("Error: {error:?}") };
    writeln!(std::io::stderr(), "{error}").unwrap_or_default();
    ExitCode::from(CORRUPTED)
}

/// The two copies of a pool's header have this length.
const HEADER_BYTES: u64 = pm_core::pool::format::HEADER_BYTES;

/// The part of corrupted slots of the root directory.
const SLOTS: &str = "root-slot";

/// The part of a finding that keeps the file from being read.
const WHOLE: &str = "whole";

/// A corrupted structure.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// The structure, for JSON.
    part: &'static str,
    /// Its offset, if it has one.
    offset: Option<u64>,
    message: String,
    pub(crate) remedy: Remedy,
}

/// The effect of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Opening for writing restores it.
    Restore,
    /// A repair discards it.
    Lose,
    /// Nothing.
    None,
}

impl Finding {
    /// The file cannot be read, for this reason.
    pub(crate) fn fatal(message: String) -> Self {
        Self { part: WHOLE, offset: None, message, remedy: Remedy::None }
    }

    /// Whether it keeps the file from being read.
    pub(crate) fn is_fatal(&self) -> bool {
        self.part == WHOLE
    }

    /// Whether it is about the header of a block, which transactions write.
    pub(crate) fn is_of_block(&self) -> bool {
        self.part == "block"
    }

    /// Whether it is about corrupted slots of the root directory.
    pub(crate) fn is_of_slots(&self) -> bool {
        self.part == SLOTS
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    fn to_json(&self) -> Value {
        let remedy = match self.remedy {
            Remedy::Restore => "restore",
            Remedy::Lose => "lose",
            Remedy::None => "none",
        };
        json!({ "part": self.part, "offset": self.offset, "message": self.message, "remedy": remedy })
    }
}

/// Corruption of the header of a pool.
pub(crate) fn of_pool_header<P: Pmem>(pool: &Pool<P>) -> Option<Finding> {
    let (offset, message) = match pool.header_state() {
        HeaderState::Intact => return None,
        HeaderState::PrimaryCorrupted(corruption) => (0, format!("the header at the start {corruption}")),
        HeaderState::BackupCorrupted(corruption) => {
            (pool.pool_bytes() - HEADER_BYTES, format!("the backup of the header {corruption}"))
        }
        // The enum is not exhaustive.
        _ => (0, "a copy of the header is corrupted".to_owned()),
    };
    Some(Finding { part: "pool-header", offset: Some(offset), message, remedy: Remedy::Restore })
}

/// Corruption of a root directory with these corrupted slots, which have this remedy, and with these roots, in a pool with this data area.
pub(crate) fn of_roots(
    corrupted_slots: usize,
    remedy: Remedy,
    data: &Range<u64>,
    roots: Vec<Root>,
) -> Vec<Finding> {
    let corrupted = match corrupted_slots {
        0 => None,
        1 => Some("a slot of the root directory is corrupted: a root may be missing".to_owned()),
        slots => Some(format!("{slots} slots of the root directory are corrupted: roots may be missing")),
    };
    let outside = roots.into_iter().filter(move |root| {
        let end = root.offset().checked_add(root.len_bytes());
        root.offset() < data.start || end.is_none_or(|end| end > data.end)
    });
    let outside = outside.map(|root| {
        let (name, at, len) = (root.name(), root.offset(), root.len_bytes());
        let message = format!("root {name:?} refers outside the data area: {len} bytes at {at:#x}");
        Finding { part: "root", offset: None, message, remedy: Remedy::None }
    });
    let slots = |message| Finding { part: SLOTS, offset: None, message, remedy };
    corrupted.map(slots).into_iter().chain(outside).collect()
}

/// Corruption of the root directory of a heap's pool.
pub(crate) fn of_heap_roots<P: Pmem>(heap: &Heap<P>, remedy: Remedy) -> Vec<Finding> {
    let pool = heap.pool();
    of_roots(pool.corrupted_root_count(), remedy, &pool.data(), pool.roots())
}

/// Corruption of the header, the state words and the logs of a heap.
pub(crate) fn of_heap(heap: &HeapInspection) -> Vec<Finding> {
    let (layout, mut findings) = (&heap.layout, Vec::new());
    let mut restored = |part, offset, message| {
        findings.push(Finding { part, offset: Some(offset), message, remedy: Remedy::Restore });
    };
    let headers = [
        (layout.heap_start, "the heap's header"),
        (layout.heap_start + COPY_START, "the copy of the heap's header"),
    ];
    for ((offset, name), _) in
        headers.into_iter().zip(heap.header_corrupted).filter(|(_, corrupted)| *corrupted)
    {
        restored("heap-header", offset, format!("{name} is corrupted"));
    }
    if heap.is_root_lost {
        let message = "the heap's root is lost; the heap was found by its header".to_owned();
        restored("heap-root", layout.heap_start, message);
    }
    if heap.chunk_count_corrupted > 0 {
        let message = "one of the two copies of the number of chunks is corrupted".to_owned();
        restored("chunk-count", layout.chunk_count_offsets()[0], message);
    }
    if heap.log.floor_corrupted > 0 {
        let message = "one of the two copies of the log's floor is corrupted".to_owned();
        restored("floor", layout.floor_offsets()[0], message);
    }
    for (index, lane) in (0..).zip(&heap.log.lanes) {
        let offset = layout.lane_offset(index);
        let state = match lane.retired_corrupted {
            0 => None,
            1 => Some(format!("one of the two copies of the state of lane {index} is corrupted")),
            _ => Some(format!(
                "both copies of the state of lane {index} are corrupted: its committed transactions may be replayed over newer data"
            )),
        };
        if let Some(message) = state {
            restored("lane", offset, message);
        }
        if lane.corrupted_count > 0 {
            let what = if lane.is_corruption_live {
                "their stores may be missing, at unknown offsets; programs cannot open the heap until it is repaired"
            } else {
                "they are no longer needed"
            };
            let message = format!("{} entries of lane {index} are corrupted: {what}", lane.corrupted_count);
            restored("lane-entry", layout.entry_offset(index, 0), message);
        }
    }
    findings
}

/// Corruption of a block's header.
pub(crate) fn of_block(corruption: &Corruption) -> Finding {
    let Corruption { header_offset, extent, found, kind, .. } = corruption;
    let is_corrupted = format!("at {header_offset:#x} is corrupted: {found:#018x}");
    let (start, len) = (extent.start, extent.end - extent.start);
    let message = match kind {
        CorruptionKind::End => format!("the end word of a chunk {is_corrupted}; no data is lost"),
        CorruptionKind::LengthUnknown => format!(
            "a block's header {is_corrupted}; up to {len} bytes at {start:#x} are unreachable, including free space; the other blocks \
             there are not lost"
        ),
        _ => format!(
            "a block's header {is_corrupted}; {len} bytes at {start:#x} are unreachable, which may be more than one block"
        ),
    };
    let remedy = if *kind == CorruptionKind::End { Remedy::Restore } else { Remedy::Lose };
    Finding { part: "block", offset: Some(*header_offset), message, remedy }
}

/// A root of a heap that refers to no block.
pub(crate) fn of_dangling(name: &str, offset: u64, len_bytes: u64) -> Finding {
    let message = format!("root {name:?} refers to no allocated block: {len_bytes} bytes at {offset:#x}");
    Finding { part: "root", offset: Some(offset), message, remedy: Remedy::None }
}

/// Corruption of a table of a store.
pub(crate) fn of_store((table, corruption): &(String, pm_btree::Corruption)) -> Finding {
    let message = format!("table {table:?}: {} is corrupted", corruption.kind);
    Finding { part: "store", offset: Some(corruption.offset), message, remedy: Remedy::None }
}

/// Prints the findings of the pool or the heap at a path, and the effect of a repair.
pub(crate) fn print_findings(path: &Path, findings: &[Finding], what: &str) {
    let path = path.display();
    say(format_args!("{path}: corrupted"));
    for finding in findings {
        field("corruption", finding.message());
    }
    let has = |remedy| findings.iter().any(|finding| finding.remedy == remedy);
    let repair = match (has(Remedy::Restore), has(Remedy::Lose)) {
        (true, true) => "restores structures that have a copy, and discards unreachable ones",
        (true, false) => "restores it",
        (false, true) => "discards what is unreachable",
        (false, false) => {
            field("repair", "nothing was changed; nothing here can be repaired");
            return;
        }
    };
    field("repair", format_args!("nothing was changed; `pm {what} repair {path}` {repair}"));
    if has(Remedy::None) {
        field("", "the rest cannot be repaired");
    }
}

/// Findings as JSON.
pub(crate) fn to_json(findings: &[Finding]) -> Vec<Value> {
    findings.iter().map(Finding::to_json).collect()
}

/// Prints the result of a repair of the file at a path: the findings that were restored and discarded, extents that were lost, and the
/// findings that are left.
pub(crate) fn print_repair(
    path: &Path,
    restored: &[Finding],
    discarded: &[Finding],
    lost: &[String],
    left: &[Finding],
) {
    let path = path.display();
    match (restored.len() + discarded.len() + lost.len(), left) {
        (0, []) => say(format_args!("{path}: nothing to repair")),
        (_, []) => say(format_args!("{path}: repaired")),
        _ => say(format_args!("{path}: corruption is left")),
    }
    for (name, findings) in [("restored", restored), ("discarded", discarded)] {
        findings.iter().for_each(|finding| field(name, finding.message()));
    }
    lost.iter().for_each(|extent| field("lost", extent));
    left.iter().for_each(|finding| field("left", finding.message()));
}
