//! What a check found, in words and for machines.

use crate::report::{field, say};
use core::ops::Range;
use pm_alloc::format::COPY_START;
use pm_alloc::{Corruption, CorruptionKind, Heap, HeapInspection};
use pm_core::{HeaderState, Pmem, Pool, Root};
use serde_json::{Value, json};
use std::path::Path;

/// The exit code for corruption that a check found, or a repair left.
pub(crate) const DAMAGED: u8 = 3;

/// The two copies of a pool's header have this length.
const HEADER_BYTES: u64 = pm_core::pool::format::HEADER_BYTES;

/// The part that corrupted slots of the root directory are.
const SLOTS: &str = "root-slot";

/// Something that is not as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Of what: a word for machines.
    part: &'static str,
    /// Where, if that is one place.
    offset: Option<u64>,
    message: String,
    pub(crate) remedy: Remedy,
}

/// What a repair can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Whatever opens it for writing restores it.
    Restore,
    /// A repair gives it up for good.
    Lose,
    /// Nothing.
    None,
}

impl Finding {
    /// That nothing can be read, for this reason.
    pub(crate) fn fatal(message: String) -> Self {
        Self { part: "whole", offset: None, message, remedy: Remedy::None }
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

    pub(crate) fn to_json(&self) -> Value {
        let remedy = match self.remedy {
            Remedy::Restore => "restore",
            Remedy::Lose => "lose",
            Remedy::None => "none",
        };
        json!({ "part": self.part, "offset": self.offset, "message": self.message, "remedy": remedy })
    }
}

/// What is wrong with the header of a pool.
pub(crate) fn of_pool_header<P: Pmem>(pool: &Pool<P>) -> Option<Finding> {
    let (offset, message) = match pool.header_state() {
        HeaderState::Intact => return None,
        HeaderState::PrimaryCorrupted(corruption) => (0, format!("the header at the start {corruption}")),
        HeaderState::BackupCorrupted(corruption) => {
            (pool.pool_bytes() - HEADER_BYTES, format!("the backup of the header {corruption}"))
        }
        // Of a later pm-core, which is none that this was built with.
        _ => (0, "a copy of the header is corrupted".to_owned()),
    };
    Some(Finding { part: "pool-header", offset: Some(offset), message, remedy: Remedy::Restore })
}

/// What is wrong with a root directory of which so many slots are corrupted, which has this remedy, and that holds these roots of a pool
/// with this data area.
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
    let astray = roots.into_iter().filter(move |root| {
        let end = root.offset().checked_add(root.len_bytes());
        root.offset() < data.start || end.is_none_or(|end| end > data.end)
    });
    let astray = astray.map(|root| {
        let (name, at, len) = (root.name(), root.offset(), root.len_bytes());
        let message = format!("root {name:?} leads out of the data area: {len} bytes at {at:#x}");
        Finding { part: "root", offset: None, message, remedy: Remedy::None }
    });
    let slots = |message| Finding { part: SLOTS, offset: None, message, remedy };
    corrupted.map(slots).into_iter().chain(astray).collect()
}

/// What is wrong with the root directory of a heap's pool.
pub(crate) fn of_heap_roots<P: Pmem>(heap: &Heap<P>, remedy: Remedy) -> Vec<Finding> {
    let pool = heap.pool();
    of_roots(pool.corrupted_root_count(), remedy, &pool.data(), pool.roots())
}

/// What is wrong with the header, the words and the logs of a heap.
pub(crate) fn of_heap(heap: &HeapInspection) -> Vec<Finding> {
    let (layout, mut findings) = (&heap.layout, Vec::new());
    let mut restored = |part, offset, message| {
        findings.push(Finding { part, offset: Some(offset), message, remedy: Remedy::Restore });
    };
    let places = [
        (layout.heap_start, "the heap's header"),
        (layout.heap_start + COPY_START, "the copy of the heap's header"),
    ];
    for ((offset, name), _) in
        places.into_iter().zip(heap.header_corrupted).filter(|(_, corrupted)| *corrupted)
    {
        restored("heap-header", offset, format!("{name} is corrupted"));
    }
    if heap.root_is_lost {
        let message = "the root that names the heap is lost, and the heap is found by its header".to_owned();
        restored("heap-root", layout.heap_start, message);
    }
    if heap.chunk_count_corrupted > 0 {
        let message = "one of the two words that say how many chunks there are is corrupted".to_owned();
        restored("chunk-count", layout.chunk_count_offsets()[0], message);
    }
    if heap.log.floor_corrupted > 0 {
        let message = "one of the two words up to which all logs are dead is corrupted".to_owned();
        restored("floor", layout.floor_offsets()[0], message);
    }
    for (index, lane) in (0..).zip(&heap.log.lanes) {
        let offset = layout.lane_offset(index);
        match lane.retired_corrupted {
            0 => {}
            1 => restored("lane", offset, format!("one of the two words of lane {index} is corrupted")),
            _ => restored(
                "lane",
                offset,
                format!(
                    "both words of lane {index} are corrupted: what it committed may be stored again over something newer"
                ),
            ),
        }
        if lane.corrupted > 0 {
            let what = if lane.is_corruption_live {
                "what they were to store may be missing, and nothing tells where; programs are refused the heap until it is repaired"
            } else {
                "nothing of them is needed any more"
            };
            let message = format!("{} entries of lane {index} are corrupted: {what}", lane.corrupted);
            restored("lane-entry", layout.entry_offset(index, 0), message);
        }
    }
    findings
}

/// A corrupted header of a block.
pub(crate) fn of_block(corruption: &Corruption) -> Finding {
    let Corruption { header_offset, extent, found, kind, .. } = corruption;
    let message = match kind {
        CorruptionKind::End => format!(
            "the word at {header_offset:#x} that ends a chunk is corrupted: {found:#018x}; nothing is lost with it"
        ),
        CorruptionKind::Resynchronized => format!(
            "a block's header at {header_offset:#x} is corrupted: {found:#018x}; up to {} bytes at {:#x} are out of reach, and \
             what is free among them; the other blocks there are not lost",
            extent.end - extent.start,
            extent.start
        ),
        _ => {
            let len = extent.end - extent.start;
            format!(
                "a block's header at {header_offset:#x} is corrupted: {found:#018x}; {len} bytes at {:#x} are out of reach, \
                 which may be more than one block",
                extent.start
            )
        }
    };
    let remedy = if *kind == CorruptionKind::End { Remedy::Restore } else { Remedy::Lose };
    Finding { part: "block", offset: Some(*header_offset), message, remedy }
}

/// A root of a heap that leads to no block.
pub(crate) fn of_dangling(name: &str, offset: u64, len_bytes: u64) -> Finding {
    let message = format!("root {name:?} leads to no allocated block: {len_bytes} bytes at {offset:#x}");
    Finding { part: "root", offset: Some(offset), message, remedy: Remedy::None }
}

/// What was found of the pool or the heap at a path, and what can be done about it.
pub(crate) fn tell_findings(path: &Path, findings: &[Finding], what: &str) {
    let path = path.display();
    say(format_args!("{path}: corrupted"));
    for finding in findings {
        field("corruption", finding.message());
    }
    let has = |remedy| findings.iter().any(|finding| finding.remedy == remedy);
    let repair = match (has(Remedy::Restore), has(Remedy::Lose)) {
        (true, true) => "restores what has a copy, and gives up what is out of reach",
        (true, false) => "restores it",
        (false, true) => "gives up what is out of reach",
        (false, false) => {
            field("repair", "nothing was changed; nothing here can be repaired");
            return;
        }
    };
    field("repair", format_args!("nothing was changed; `pm {what} repair {path}` {repair}"));
    if has(Remedy::None) {
        field("", "the rest it cannot repair");
    }
}
