//! `pm heap repair`

use crate::args::Repair;
use crate::error::AtPath;
use crate::findings::{self, DAMAGED, Finding, Remedy};
use crate::pool::repair_options;
use crate::report::{Asker, bytes, field, say};
use crate::view::{Checked, View};
use miette::IntoDiagnostic as _;
use pm_alloc::{Corruption, CorruptionKind, Heap, HeapOptions};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// `pm heap repair`
///
/// What is corrupted is learned without opening the heap for writing. So nothing is written before the user has agreed, and what is
/// asked is what is done: the heap is recovered from the same bytes.
pub(crate) fn run(args: &Repair, json: bool) -> miette::Result<ExitCode> {
    let path = &args.file;
    let Checked { view, report, findings, .. } = View::open(path)?.check(|_| ());
    drop(view);
    let mut done = Done::default();
    if findings.iter().any(|finding| finding.remedy != Remedy::None) {
        let asker = Asker::new(args.yes)?;
        if let Some(agreed) = ask(&asker, path, &findings, &report.corruptions)? {
            done = repair(path, &findings, &agreed)?;
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
    lost: Vec<Corruption>,
    slots: Option<Finding>,
}

/// What is to be given up.
struct Agreed {
    /// The corrupted headers that are to be written over.
    corruptions: Vec<Corruption>,
    /// The slots of the root directory that are to be freed.
    slots: Option<Finding>,
}

/// What is to be done; nothing if the heap is not even to be opened.
fn ask(
    asker: &Asker,
    path: &Path,
    findings: &[Finding],
    corruptions: &[Corruption],
) -> miette::Result<Option<Agreed>> {
    let path = path.display();
    let is_word = |finding: &&Finding| finding.remedy == Remedy::Restore && !finding.is_of_block();
    let words: Vec<&str> = findings.iter().filter(is_word).map(Finding::message).collect();
    if !words.is_empty() {
        let question = format!("{path}: {}.\nRecover the heap, and restore that?", words.join(";\n  "));
        if !asker.ask(&question)? {
            return Ok(None);
        }
    }
    let mut slots = None;
    if let Some(finding) = findings.iter().find(|finding| finding.is_of_slots())
        && asker.ask(&format!("{path}: {}. Give up for good what was there?", finding.message()))?
    {
        slots = Some(finding.clone());
    }
    let mut agreed = Vec::new();
    for corruption in corruptions {
        let finding = findings::of_block(corruption);
        let what =
            if finding.remedy == Remedy::Restore { "Write it again?" } else { "Give them up for good?" };
        if asker.ask(&format!("{path}: {}. {what}", finding.message()))? {
            agreed.push(corruption.clone());
        }
    }
    let is_asked_for = !words.is_empty() || !agreed.is_empty() || slots.is_some();
    Ok(is_asked_for.then_some(Agreed { corruptions: agreed, slots }))
}

fn repair(path: &Path, findings: &[Finding], agreed: &Agreed) -> miette::Result<Done> {
    // Recovers, and restores all that has a copy.
    let options = HeapOptions::new().region(repair_options()).discard_corrupted_records(true);
    let mut heap = Heap::open(path, &options).map_err(AtPath::new(path))?;
    let words = findings.iter().filter(|finding| finding.remedy == Remedy::Restore && !finding.is_of_block());
    let mut done = Done { restored: words.cloned().collect(), ..Done::default() };
    if let Some(finding) = &agreed.slots
        && heap.discard_corrupted_roots().into_diagnostic()? > 0
    {
        done.slots = Some(finding.clone());
    }
    for corruption in &agreed.corruptions {
        let finding = findings::of_block(corruption);
        if !heap.repair(corruption).into_diagnostic()? {
            // Another process has changed it since.
        } else if finding.remedy == Remedy::Lose {
            done.lost.push(corruption.clone());
        } else {
            done.restored.push(finding);
        }
    }
    Ok(done)
}

fn tell(path: &Path, json: bool, done: &Done, left: &[Finding]) {
    if json {
        let list = |findings: &[Finding]| findings.iter().map(Finding::to_json).collect::<Vec<Value>>();
        let lost = done.lost.iter().map(|corruption| {
            json!({ "offset": corruption.extent.start, "len_bytes": corruption.extent.end - corruption.extent.start })
        });
        say(json!({
            "path": path.to_string_lossy(),
            "restored": list(&done.restored),
            "lost": lost.collect::<Vec<Value>>(),
            "lost_roots": list(done.slots.as_slice()),
            "left": list(left),
        }));
        return;
    }
    let path = path.display();
    match (done.restored.len() + done.lost.len() + done.slots.iter().len(), left) {
        (0, []) => say(format_args!("{path}: nothing to repair")),
        (_, []) => say(format_args!("{path}: repaired")),
        _ => say(format_args!("{path}: corruption is left")),
    }
    for finding in &done.restored {
        field("restored", finding.message());
    }
    if let Some(finding) = &done.slots {
        field("given up", finding.message());
    }
    for corruption in &done.lost {
        let extent = &corruption.extent;
        let but = if corruption.kind == CorruptionKind::Resynchronized {
            ", but for the blocks in there"
        } else {
            ""
        };
        let len = bytes(extent.end - extent.start);
        field("lost", format_args!("{len} from {:#x} to {:#x}{but}", extent.start, extent.end));
    }
    for finding in left {
        field("left", finding.message());
    }
}
