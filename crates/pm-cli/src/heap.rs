//! `pm heap create`, `info` and `check`

use crate::args::{Create, Target};
use crate::error::AtPath;
use crate::findings::{self, CORRUPTED, Finding, print_findings};
use crate::pool::{self, root_line};
use crate::report::{bytes, count, field, say};
use crate::view::{Checked, View};
use pm_alloc::{CheckReport, Heap, HeapOptions, LaneInspection, Recovery};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// `pm heap create`
pub(crate) fn create(args: &Create, json: bool) -> miette::Result<()> {
    let mut options = HeapOptions::new();
    if let Some(lanes) = args.lanes {
        options = options.lanes(lanes);
    }
    if let Some(entries) = args.lane_entries {
        options = options.lane_entries(entries);
    }
    if let Some(chunk) = args.chunk_bytes {
        options = options.chunk_bytes(chunk.0);
    }
    drop(Heap::create(&args.file, args.size.0, &options).map_err(AtPath::new(&args.file))?);
    describe(&args.file, json)
}

/// `pm heap info`
pub(crate) fn info(args: &Target, json: bool) -> miette::Result<()> {
    describe(&args.file, json)
}

/// `pm heap check`
pub(crate) fn check(args: &Target, json: bool) -> miette::Result<ExitCode> {
    let path = &args.file;
    let checked = match View::open(path) {
        Ok(view) => Ok(view.check(|_| ())),
        Err(error) => Err(vec![Finding::fatal(error.corruption().ok_or(error)?)]),
    };
    let findings = match &checked {
        Ok(checked) => &checked.findings,
        Err(findings) => findings,
    };
    if json {
        let list = findings::to_json(findings);
        let blocks = checked.as_ref().ok().map(|checked| blocks_json(&checked.report));
        say(json!({
            "path": path.to_string_lossy(), "clean": list.is_empty(), "findings": list, "blocks": blocks,
        }));
    } else if let (Ok(checked), true) = (&checked, findings.is_empty()) {
        print_sound(path, checked);
    } else {
        print_findings(path, findings, "heap");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) })
}

/// Prints the properties of the heap at a path.
fn describe(path: &Path, json: bool) -> miette::Result<()> {
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
    pool::print_pool(&view.pool);
    let lanes = count(layout.lane_count.into(), "lane", "lanes");
    field("log", format_args!("{lanes} of {} entries", layout.lane_entries));
    field("recovery", recovery_line(&view.heap.open_report().recovery));
    let allocated = count(report.allocated_blocks, "block", "blocks");
    field("allocated", format_args!("{} in {allocated}", bytes(report.allocated_bytes)));
    let free = count(report.free_blocks, "block", "blocks");
    field("free", format_args!("{} in {free}", bytes(report.free_bytes)));
    print_lost(report);
    for (root, _) in roots.iter() {
        field("root", root_line(root));
    }
    for finding in findings {
        field("corruption", finding.message());
    }
}

/// What recovery on the next open will do.
fn recovery_line(recovery: &Recovery) -> String {
    let Recovery { replayed, rolled_back, .. } = *recovery;
    if (replayed, rolled_back) == (0, 0) {
        return "the next open has nothing to recover".to_owned();
    }
    let again = count(replayed, "transaction", "transactions");
    format!("the next open replays {again}, and rolls back {rolled_back}")
}

fn to_json(path: &Path, checked: &Checked) -> Value {
    let Checked { view, report, findings, .. } = checked;
    let (inspection, recovery) = (&view.inspection, &view.heap.open_report().recovery);
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
        "recovery": { "replayed": recovery.replayed, "rolled_back": recovery.rolled_back },
        "blocks": blocks_json(report),
        "findings": findings::to_json(findings),
    })
}

fn lane_json(lane: &LaneInspection) -> Value {
    json!({
        "retired": lane.retired_lsn.map(|lsn| lsn.bits()),
        "groups": lane.group_count,
        "last": lane.last_lsn.map(|lsn| lsn.bits()),
        "is_live": lane.is_live,
        "open_undo": lane.open_undo_count,
        "corrupted": lane.corrupted_count,
    })
}

fn print_sound(path: &Path, checked: &Checked) {
    let Checked { view, report, roots, .. } = checked;
    let lost = match report.lost_blocks {
        0 => String::new(),
        lost => format!(", {lost} lost"),
    };
    say(format_args!(
        "{}: sound: all headers of {} and {} free{lost} in {}, {}, {}",
        path.display(),
        count(report.allocated_blocks, "allocated block", "allocated blocks"),
        report.free_blocks,
        count(report.chunks.len() as u64, "chunk", "chunks"),
        count(view.inspection.layout.lane_count.into(), "lane", "lanes"),
        count(roots.iter().count() as u64, "root", "roots"),
    ));
    print_lost(report);
}

/// Extents that earlier repairs gave up: not corruption, but lost for good.
fn print_lost(report: &CheckReport) {
    if report.lost_blocks > 0 {
        let extents = count(report.lost_blocks, "extent", "extents");
        field("lost", format_args!("{} in {extents}, by repairs", bytes(report.lost_bytes)));
    }
}

/// The blocks as JSON.
fn blocks_json(report: &CheckReport) -> Value {
    json!({
        "allocated_blocks": report.allocated_blocks,
        "allocated_bytes": report.allocated_bytes,
        "free_blocks": report.free_blocks,
        "free_bytes": report.free_bytes,
        "lost_blocks": report.lost_blocks,
        "lost_bytes": report.lost_bytes,
        "corrupted_headers": report.corruptions.len(),
    })
}
