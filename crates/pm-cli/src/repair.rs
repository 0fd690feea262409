//! `pm heap repair`

use crate::args::Repair;
use crate::ask::Asker;
use crate::check::DAMAGED;
use crate::error::AtPath;
use crate::findings::{self, Finding, Remedy};
use crate::report::{bytes, field, say};
use crate::view::{Checked, View};
use miette::IntoDiagnostic as _;
use pm_alloc::{Damage, DamageKind, Heap, HeapOptions};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// `pm heap repair`
///
/// What is damaged is learned without opening the heap for writing. So nothing is written before somebody has agreed, and what is
/// asked is what is done: the heap is recovered from the same bytes.
pub(crate) fn run(args: &Repair, json: bool) -> miette::Result<ExitCode> {
    let path = &args.file;
    let Checked { view, report, findings, .. } = View::open(path)?.check(|_| ());
    drop(view);
    let mut done = Done::default();
    if findings.iter().any(|finding| finding.remedy != Remedy::None) {
        let asker = Asker::new(args.yes)?;
        let agreed = ask(&asker, path, &findings, &report.damages)?;
        if let Some(damages) = agreed {
            done = repair(path, &findings, &damages)?;
        }
    }
    let left = if findings.is_empty() { findings } else { View::open(path)?.check(|_| ()).findings };
    tell(path, json, &done, &left);
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

/// What a repair did.
#[derive(Default)]
struct Done {
    restored: Vec<Finding>,
    lost: Vec<Damage>,
}

/// The damaged headers that are to be written over; nothing if the heap is not even to be opened.
fn ask(
    asker: &Asker,
    path: &Path,
    findings: &[Finding],
    damages: &[Damage],
) -> miette::Result<Option<Vec<Damage>>> {
    let path = path.display();
    let is_word = |finding: &&Finding| finding.remedy == Remedy::Restore && !finding.is_of_block();
    let words: Vec<&str> = findings.iter().filter(is_word).map(Finding::message).collect();
    if !words.is_empty() {
        let question = format!("{path}: {}.\nRecover the heap, and restore that?", words.join(";\n  "));
        if !asker.ask(&question)? {
            return Ok(None);
        }
    }
    let mut agreed = Vec::new();
    for damage in damages {
        let finding = findings::of_block(damage);
        let what =
            if finding.remedy == Remedy::Restore { "Write it again?" } else { "Give them up for good?" };
        if asker.ask(&format!("{path}: {}. {what}", finding.message()))? {
            agreed.push(damage.clone());
        }
    }
    Ok((!words.is_empty() || !agreed.is_empty()).then_some(agreed))
}

fn repair(path: &Path, findings: &[Finding], damages: &[Damage]) -> miette::Result<Done> {
    // Recovers, and restores all that has a copy.
    let mut heap =
        Heap::open(path, &HeapOptions::new().discard_corrupted_records(true)).map_err(AtPath::new(path))?;
    let words = findings.iter().filter(|finding| finding.remedy == Remedy::Restore && !finding.is_of_block());
    let mut done = Done { restored: words.cloned().collect(), lost: Vec::new() };
    for damage in damages {
        let finding = findings::of_block(damage);
        if !heap.repair(damage).into_diagnostic()? {
            // Somebody else was here since.
        } else if finding.remedy == Remedy::Lose {
            done.lost.push(damage.clone());
        } else {
            done.restored.push(finding);
        }
    }
    Ok(done)
}

fn tell(path: &Path, json: bool, done: &Done, left: &[Finding]) {
    if json {
        let list = |findings: &[Finding]| findings.iter().map(Finding::to_json).collect::<Vec<Value>>();
        let lost = done.lost.iter().map(|damage| {
            json!({ "offset": damage.extent.start, "len_bytes": damage.extent.end - damage.extent.start })
        });
        say(json!({
            "path": path.to_string_lossy(),
            "restored": list(&done.restored),
            "lost": lost.collect::<Vec<Value>>(),
            "left": list(left),
        }));
        return;
    }
    let path = path.display();
    match (done.restored.len() + done.lost.len(), left) {
        (0, []) => say(format_args!("{path}: nothing to repair")),
        (_, []) => say(format_args!("{path}: repaired")),
        _ => say(format_args!("{path}: damage is left")),
    }
    for finding in &done.restored {
        field("restored", finding.message());
    }
    for damage in &done.lost {
        let extent = &damage.extent;
        let but =
            if damage.kind == DamageKind::Resynchronized { ", but for the blocks in there" } else { "" };
        let len = bytes(extent.end - extent.start);
        field("lost", format_args!("{len} from {:#x} to {:#x}{but}", extent.start, extent.end));
    }
    for finding in left {
        field("left", finding.message());
    }
}
