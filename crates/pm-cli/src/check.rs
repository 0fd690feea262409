//! `pm heap check`

use crate::args::Target;
use crate::findings::{Finding, Remedy};
use crate::report::{self, field, say};
use crate::view::{Checked, View};
use pm_alloc::CheckReport;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// The exit code for damage that a check found, or a repair left.
pub(crate) const DAMAGED: u8 = 3;

/// `pm heap check`
pub(crate) fn run(args: &Target, json: bool) -> miette::Result<ExitCode> {
    let path = &args.file;
    let checked = match View::open(path) {
        Ok(view) => Ok(view.check(|_| ())),
        Err(error) => Err(vec![Finding::fatal(error.damage().ok_or(error)?)]),
    };
    let findings = match &checked {
        Ok(checked) => &checked.findings,
        Err(findings) => findings,
    };
    if json {
        let list: Vec<Value> = findings.iter().map(Finding::to_json).collect();
        let blocks = checked.as_ref().ok().map(|checked| blocks_json(&checked.report));
        say(json!({
            "path": path.to_string_lossy(), "clean": list.is_empty(), "findings": list, "blocks": blocks,
        }));
    } else if let (Ok(checked), true) = (&checked, findings.is_empty()) {
        tell_sound(path, checked);
    } else {
        tell_findings(path, findings, "heap");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

fn tell_sound(path: &Path, checked: &Checked) {
    let Checked { view, report, roots, .. } = checked;
    let blocks = report.allocated_blocks + report.free_blocks + report.lost_blocks;
    say(format_args!(
        "{}: sound: all headers of {} in {}, {}, {}",
        path.display(),
        report::count(blocks, "block", "blocks"),
        report::count(report.chunks.len() as u64, "chunk", "chunks"),
        report::count(view.inspection.layout.lane_count.into(), "lane", "lanes"),
        report::count(roots.iter().count() as u64, "root", "roots"),
    ));
    tell_lost(report);
}

/// What former repairs gave up: no damage, and never to be had again.
pub(crate) fn tell_lost(report: &CheckReport) {
    if report.lost_blocks > 0 {
        let extents = report::count(report.lost_blocks, "extent", "extents");
        field("lost", format_args!("{} in {extents}, by repairs", report::bytes(report.lost_bytes)));
    }
}

/// What was found of the pool or the heap at a path, and what can be done about it.
pub(crate) fn tell_findings(path: &Path, findings: &[Finding], what: &str) {
    let path = path.display();
    say(format_args!("{path}: damaged"));
    for finding in findings {
        field("damage", finding.message());
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

/// The blocks for machines.
pub(crate) fn blocks_json(report: &CheckReport) -> Value {
    json!({
        "allocated_blocks": report.allocated_blocks,
        "allocated_bytes": report.allocated_bytes,
        "free_blocks": report.free_blocks,
        "free_bytes": report.free_bytes,
        "lost_blocks": report.lost_blocks,
        "lost_bytes": report.lost_bytes,
        "damaged_headers": report.damages.len(),
    })
}
