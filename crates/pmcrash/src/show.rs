//! `pmcrash show` and `pmcrash filter`

use crate::args::{Filter, Show};
use crate::io::{answer, count, open, save, say};
use crate::select::Selection;
use pm_crashsim::{CrashPoint, CrashRecord, Event, TraceFile};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The stored bytes that a line of the listing has room for.
const SHOWN_BYTES: usize = 8;

/// `pmcrash filter`
pub(crate) fn filter(args: &Filter, json: bool) -> miette::Result<()> {
    let file = open(&args.file)?;
    let chosen = file.filtered(|number, event| args.selection.has(number, event));
    save(&chosen, &args.output)?;
    let (kept, all) = (chosen.trace().events().len(), file.trace().events().len());
    let output = args.output.display();
    answer(
        json,
        || json!({ "output": output.to_string(), "events": kept, "of": all }),
        || format!("{output}: {kept} of {all} events"),
    );
    Ok(())
}

/// `pmcrash show`
pub(crate) fn run(args: &Show, json: bool) -> miette::Result<()> {
    let file = open(&args.file)?;
    let path = args.file.display().to_string();
    if !answer(json, || head_json(&file), || head(&path, &file)) {
        return Ok(());
    }
    for level in 0..file.crashes().len().max(1) {
        let Some(run) = file.level(level) else { break };
        if level > 0 && !json && !say(format_args!("\nrecovery from crash {level}:")) {
            break;
        }
        if !list(&run, level, &args.selection, json) {
            break;
        }
    }
    Ok(())
}

/// Lists the events of one run; false when standard output is closed.
fn list(run: &TraceFile, level: usize, selection: &Selection, json: bool) -> bool {
    let points = run.crash_points();
    let mut points = points.iter().enumerate().peekable();
    let crash = run.crashes().first();
    for at in 0..=run.trace().events().len() {
        while let Some((number, point)) = points.next_if(|(_, point)| point.events == at) {
            if !answer(json, || point_json(number, level, point), || point_line(number, point)) {
                return false;
            }
        }
        if let Some(crash) = crash.filter(|crash| crash.events() == at)
            && !answer(json, || crash_json(run, level, crash), || crash_line(run, crash))
        {
            return false;
        }
        if let Some(event) = run.trace().events().get(at).filter(|event| selection.has(at, event))
            && !answer(json, || event_json(run, level, at, event), || event_line(run, at, event))
        {
            return false;
        }
    }
    true
}

fn threads(file: &TraceFile) -> usize {
    file.trace().events().iter().map(|event| event.thread).collect::<BTreeSet<_>>().len()
}

fn head(path: &str, file: &TraceFile) -> String {
    let (len, model) = (file.start().len_bytes(), file.model());
    let (events, threads, crashes) = (file.trace().events().len(), threads(file), file.crashes().len());
    let mut head =
        format!("{path}: {len} bytes, {model}, {events} events of {threads} threads, {crashes} crashes");
    for line in file.message().lines() {
        head.push_str("\n  ");
        head.push_str(line);
    }
    head
}

fn head_json(file: &TraceFile) -> Value {
    json!({
        "model": file.model().name(),
        "region_bytes": file.start().len_bytes(),
        "events": file.trace().events().len(),
        "threads": threads(file),
        "crashes": file.crashes().len(),
        "message": file.message(),
    })
}

/// The bytes of a store.
fn data<'f>(run: &'f TraceFile, event: &Event) -> Option<&'f [u8]> {
    event.kind.data().map(|data| run.trace().data(data))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").map(|()| text).unwrap_or_default()
    })
}

fn event_line(run: &TraceFile, at: usize, event: &Event) -> String {
    let extent = event.kind.extent().map(|(offset, len)| format!("{offset:#x} +{len}")).unwrap_or_default();
    let data = data(run, event).unwrap_or_default();
    let more = if data.len() > SHOWN_BYTES { ".." } else { "" };
    let shown = format!("{}{more}", hex(&data[..data.len().min(SHOWN_BYTES)]));
    let (name, thread) = (event.kind.name(), event.thread);
    format!("{at:>6}  t{thread:<3} {name:<15} {extent:<18} {shown:<18} {}", run.trace().location_of(at))
}

fn event_json(run: &TraceFile, level: usize, at: usize, event: &Event) -> Value {
    let location = run.trace().location_of(at);
    json!({
        "event": at,
        "level": level,
        "kind": event.kind.name(),
        "thread": event.thread,
        "offset": event.kind.extent().map(|(offset, _)| offset),
        "len_bytes": event.kind.extent().map(|(_, len)| len),
        "data": data(run, event).map(hex),
        "file": location.file(),
        "line": location.line(),
        "column": location.column(),
    })
}

fn point_line(number: usize, point: &CrashPoint) -> String {
    let CrashPoint { pending_lines, pending_words, legal, acked, .. } = *point;
    format!(
        "      - point {number}: {pending_words} words of {pending_lines} lines pending, {} legal images, {acked} acknowledged",
        count(legal)
    )
}

fn point_json(number: usize, level: usize, point: &CrashPoint) -> Value {
    json!({
        "point": number,
        "level": level,
        "events": point.events,
        "acked": point.acked,
        "pending_lines": point.pending_lines,
        "pending_words": point.pending_words,
        // A string, because many readers of JSON limit numbers.
        "legal": count(point.legal),
    })
}

fn crash_line(run: &TraceFile, crash: &CrashRecord) -> String {
    let (kept, pending) = (crash.kept().len(), run.pending(crash.events()).len());
    format!("      * crash: {kept} of {pending} pending words survive")
}

fn crash_json(run: &TraceFile, level: usize, crash: &CrashRecord) -> Value {
    let kept = crash.kept().iter().map(|kept| json!({ "event": kept.event, "offset": kept.offset() }));
    json!({
        "crash": level,
        "events": crash.events(),
        "pending": run.pending(crash.events()).len(),
        "kept": kept.collect::<Vec<_>>(),
    })
}
