//! `pm heap info`

use crate::args::Target;
use crate::check::{blocks_json, tell_lost};
use crate::findings::Finding;
use crate::pool::{self, root_line};
use crate::report::{self, bytes, count, field, say};
use crate::view::{Checked, View};
use pm_alloc::{LaneInspection, Recovery};
use serde_json::{Value, json};
use std::path::Path;

/// `pm heap info`
pub(crate) fn run(args: &Target, json: bool) -> miette::Result<()> {
    tell(&args.file, json)
}

/// Tells what is in the heap at a path.
pub(crate) fn tell(path: &Path, json: bool) -> miette::Result<()> {
    let checked = View::open(path)?.check(|_| ());
    if json {
        say(to_json(path, &checked))
    } else {
        print(path, &checked)
    }
    Ok(())
}

fn print(path: &Path, checked: &Checked) {
    let Checked { view, report, roots, findings } = checked;
    let (layout, chunks) = (&view.inspection.layout, view.inspection.chunk_count);
    say(format_args!(
        "{}: a heap of {} in {} of {}, on {}",
        path.display(),
        bytes(chunks * layout.chunk_bytes),
        count(chunks, "chunk", "chunks"),
        bytes(layout.chunk_bytes),
        view.pool.pmem().medium()
    ));
    pool::tell_pool(&view.pool);
    let lanes = count(layout.lane_count.into(), "lane", "lanes");
    field("log", format_args!("{lanes} of {} entries", layout.lane_entries));
    field("recovery", recovery_line(&view.heap.opened().recovery));
    let allocated = count(report.allocated_blocks, "block", "blocks");
    field("allocated", format_args!("{} in {allocated}", bytes(report.allocated_bytes)));
    let free = count(report.free_blocks, "block", "blocks");
    field("free", format_args!("{} in {free}", bytes(report.free_bytes)));
    tell_lost(report);
    for (root, _) in roots.iter() {
        field("root", root_line(root));
    }
    for finding in findings {
        field("damage", finding.message());
    }
}

/// What the next opening will do.
fn recovery_line(recovery: &Recovery) -> String {
    let Recovery { stored_again, rolled_back, .. } = *recovery;
    if (stored_again, rolled_back) == (0, 0) {
        return "the next opening has nothing to recover".to_owned();
    }
    let again = report::count(stored_again, "transaction", "transactions");
    format!("the next opening stores {again} again, and takes back {rolled_back}")
}

fn to_json(path: &Path, checked: &Checked) -> Value {
    let Checked { view, report, findings, .. } = checked;
    let (inspection, recovery) = (&view.inspection, &view.heap.opened().recovery);
    let layout = &inspection.layout;
    json!({
        "path": path.to_string_lossy(),
        "pool": pool::to_json(path, &view.pool, &[]),
        "heap_start": layout.heap_start,
        "chunks_start": layout.chunks_start,
        "chunk_bytes": layout.chunk_bytes,
        "chunk_count": inspection.chunk_count,
        "lane_entries": layout.lane_entries,
        "floor": inspection.log.floor.bits(),
        "lanes": inspection.log.lanes.iter().map(lane_json).collect::<Vec<Value>>(),
        "recovery": { "stored_again": recovery.stored_again, "rolled_back": recovery.rolled_back },
        "blocks": blocks_json(report),
        "findings": findings.iter().map(Finding::to_json).collect::<Vec<Value>>(),
    })
}

fn lane_json(lane: &LaneInspection) -> Value {
    json!({
        "retired": lane.retired.map(|stamp| stamp.bits()),
        "groups": lane.groups,
        "last": lane.last.map(|stamp| stamp.bits()),
        "is_live": lane.is_live,
        "open_undo": lane.open_undo,
        "damaged": lane.damaged,
    })
}
