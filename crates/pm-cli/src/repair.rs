//! `pm heap repair`

use crate::args::HeapRepair;
use crate::error::AtPath;
use crate::findings::{self, CORRUPTED, Finding, Remedy, print_repair};
use crate::pool::repair_options;
use crate::report::{Asker, bytes, field, say};
use crate::view::{Checked, View};
use miette::IntoDiagnostic as _;
use pm_alloc::{Corruption, CorruptionKind, Heap, HeapOptions};
use pm_core::Pmem;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

/// `pm heap repair`
///
/// Corruption is found without opening the heap for writing, so nothing is written before the user has agreed, and the heap is then recovered
/// from the same bytes.
pub(crate) fn run(args: &HeapRepair, json: bool) -> miette::Result<ExitCode> {
    let path = &args.repair.file;
    let Checked { view, report, findings, .. } = View::open(path)?.check(|_| ());
    let mut done = Done { refusal: refusal(&view.heap, &findings, args.discard_roots), ..Done::default() };
    drop(view);
    if done.refusal.is_none() && findings.iter().any(|finding| finding.remedy != Remedy::None) {
        let asker = Asker::new(args.repair.yes)?;
        if let Some(agreed) = ask(&asker, path, &findings, &report.corruptions)? {
            done = repair(path, &findings, &agreed)?;
        }
    }
    let left = if findings.is_empty() { findings } else { View::open(path)?.check(|_| ()).findings };
    print(path, json, &done, &left);
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) })
}

/// Why a repair would destroy what the heap's owner may still reach, and so stores nothing.
fn refusal<P: Pmem>(heap: &Heap<P>, findings: &[Finding], discards_roots: bool) -> Option<&'static str> {
    let has_slots = findings.iter().any(Finding::is_of_slots);
    let is_broken = findings.iter().any(|finding| finding.is_of_block() && finding.remedy == Remedy::Lose);
    let is_file_system = heap.pool().roots().iter().any(|root| root.name() == pm_fs::format::ROOT);
    if has_slots && !discards_roots {
        Some(
            "a root is lost with its line, and with it a file system or what else it leads to. Keep a copy of the file as it is; \
             --discard-roots frees the line",
        )
    } else if is_broken && is_file_system {
        Some(
            "the heap has a file system, whose files may be in the block. Keep a copy of the file as it is, and copy the files out with \
             `pmfs cp`",
        )
    } else {
        None
    }
}

/// The result of a repair.
#[derive(Default)]
struct Done {
    /// Why nothing was stored.
    refusal: Option<&'static str>,
    restored: Vec<Finding>,
    lost: Vec<Corruption>,
    slots: Option<Finding>,
}

/// What the user has agreed to.
struct Agreed {
    /// The corrupted headers to be replaced.
    corruptions: Vec<Corruption>,
    /// The slots of the root directory to be freed.
    slots: Option<Finding>,
}

/// Asks about each finding. `None` if the heap is not to be opened.
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
        && asker.ask(&format!("{path}: {}. Discard it?", finding.message()))?
    {
        slots = Some(finding.clone());
    }
    let mut agreed = Vec::new();
    for corruption in corruptions {
        let finding = findings::of_block(corruption);
        let what = if finding.remedy == Remedy::Restore { "Restore it?" } else { "Discard the block?" };
        if asker.ask(&format!("{path}: {}. {what}", finding.message()))? {
            agreed.push(corruption.clone());
        }
    }
    let is_asked_for = !words.is_empty() || !agreed.is_empty() || slots.is_some();
    Ok(is_asked_for.then_some(Agreed { corruptions: agreed, slots }))
}

fn repair(path: &Path, findings: &[Finding], agreed: &Agreed) -> miette::Result<Done> {
    // Recovers the heap, and restores all structures that have a copy.
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

fn print(path: &Path, json: bool, done: &Done, left: &[Finding]) {
    let Done { refusal, restored, lost, slots } = done;
    let slots = slots.as_slice();
    if json {
        let lost: Vec<_> = lost.iter().map(|Corruption { extent, .. }| {
            json!({ "offset": extent.start, "len_bytes": extent.end - extent.start })
        }).collect();
        let [restored, slots, left] = [restored, slots, left].map(findings::to_json);
        let path = path.to_string_lossy();
        say(json!({
            "path": path, "restored": restored, "lost": lost, "lost_roots": slots, "left": left, "refusal": refusal,
        }));
        return;
    }
    let lost = lost.iter().map(|Corruption { extent, kind, .. }| {
        let except = if *kind == CorruptionKind::LengthUnknown { ", except the blocks in it" } else { "" };
        let len = bytes(extent.end - extent.start);
        format!("{len} from {:#x} to {:#x}{except}", extent.start, extent.end)
    });
    print_repair(path, restored, slots, &lost.collect::<Vec<_>>(), left);
    refusal.iter().for_each(|refusal| field("refused", format_args!("nothing was stored: {refusal}")));
}
