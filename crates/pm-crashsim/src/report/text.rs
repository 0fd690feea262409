//! The report on a terminal: the crash drawn, the state found, the repair, and the command that repeats it.

use super::timeline::{Cell, Fate, Row, Timeline, What};
use crate::outcome::{CrashReport, Failure, Moment};
use crate::{Model, SourceLocation};
use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use core::fmt::{self, Display, Write};
use std::io::stderr;

/// The width of a report.
const WIDTH: usize = 110;
/// The columns of the drawing: number and name of the event, each line, the bytes. The place has the rest.
const EVENT_WIDTH: usize = 24;
const LANE_WIDTH: usize = 13;
const BYTES_WIDTH: usize = 18;
const LEGEND: &str = "  │ durable  ┊ pending";
/// The column of labels below the drawing.
const LABEL_WIDTH: usize = 10;

impl fmt::Display for Failure {
    /// The whole report, without colours.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        strip_str(&coloured(|report| write_report(report, self))).fmt(f)
    }
}

impl fmt::Display for CrashReport {
    /// Draws the crash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        strip_str(&coloured(|report| write_crash(report, self, 0, 1))).fmt(f)
    }
}

impl Failure {
    /// The report for standard error: coloured if that is a terminal and the environment does not forbid it.
    pub(crate) fn for_stderr(&self) -> String {
        match AutoStream::choice(&stderr()) {
            ColorChoice::Never => self.to_string(),
            _ => coloured(|report| write_report(report, self)),
        }
    }
}

/// The text with the escape sequences of terminals.
fn coloured(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    write(&mut text).expect("writing to a string never fails");
    text
}

fn write_report(f: &mut String, failure: &Failure) -> fmt::Result {
    writeln!(f, "{}", Role::Heading.paint(&failure.message))?;
    if let Some(when) = failure.untouched {
        writeln!(f, "\n  The check rejects even what was there {when}, which no crash has touched.")?;
    }
    for (number, crash) in failure.crashes.iter().enumerate() {
        write_crash(f, crash, number, failure.crashes.len())?;
    }
    writeln!(f)?;
    if let Some(mismatch) = &failure.mismatch {
        write_item(f, "found", &mismatch.found)?;
        write_item(f, "allowed", &mismatch.allowed.join("\n"))?;
    }
    if let Some(repair) = &failure.repair {
        write_item(f, "repair", &repair.to_string())?;
    }
    write_item(f, "tried", &failure.coverage.to_string().replace("; ", "\n"))?;
    if let Some(path) = &failure.trace_file {
        write_item(f, "trace", &path.display().to_string())?;
    }
    let Some(id) = &failure.replay else {
        return Ok(());
    };
    // Outside of a test, the command that runs the program again is unknown.
    let (label, joint) = match &failure.origin.test {
        Some(_) => ("", "or "),
        None => ("replay", ""),
    };
    if failure.origin.test.is_some() {
        writeln!(f, "  {:<LABEL_WIDTH$}{}", "replay", failure.origin.replay_command(id))?;
    }
    write!(f, "  {label:<LABEL_WIDTH$}{joint}Explorer::{}.replay(\"{id}\")", constructor(id))
}

/// The constructor of an explorer under the model with which that name begins.
fn constructor(id: &str) -> String {
    let name = id.split(':').next().unwrap_or_default();
    match Model::ALL.into_iter().find(|model| model.name() == name) {
        Some(model) if model != Model::default() => format!("new(Model::{model:?})"),
        _ => "default()".to_owned(),
    }
}

fn write_crash(f: &mut String, crash: &CrashReport, number: usize, crashes: usize) -> fmt::Result {
    let of_what = if number == 0 { "of the operation" } else { "of recovery" };
    let heading = match crashes {
        1 if matches!(crash.moment, Moment::Killed(_)) => {
            format!("killed {}, the caches kept: the next process fails", crash.moment)
        }
        1 => format!("crash {}", crash.moment),
        _ => format!("crash {} of {crashes}, {of_what}, {}", number + 1, crash.moment),
    };
    writeln!(f, "\n{}", Role::Heading.paint(&heading))?;
    let timeline = Timeline::of(crash);
    if !timeline.lanes.is_empty() {
        let name = |lane: &u64| {
            let name = format!("line {lane:#x}");
            if name.len() < LANE_WIDTH { name } else { format!("{lane:#x}") }
        };
        let lanes = timeline.lanes.iter().map(|lane| format!("{:<LANE_WIDTH$}", name(lane)));
        let header = format!("{LEGEND:<EVENT_WIDTH$}{}", lanes.collect::<String>());
        writeln!(f, "\n{}", Role::Aside.paint(header.trim_end()))?;
        for row in &timeline.rows {
            write_row(f, row)?;
        }
        let end = if matches!(crash.moment, Moment::Killed(_)) { "kill" } else { "crash" };
        write_end(f, end, &timeline)?;
    }
    write_summary(f, crash, &timeline)
}

fn write_row(f: &mut String, row: &Row) -> fmt::Result {
    let mut line = String::new();
    let what = match &row.what {
        What::Gap => format!("     ⋮  {} rows", row.count),
        What::Event { name, thread, .. } => {
            let thread = thread.map(|thread| format!("t{thread} ")).unwrap_or_default();
            let times = if row.count > 1 { format!(" ×{}", row.count) } else { String::new() };
            format!("{:>6}  {thread}{name}{times}", row.number)
        }
    };
    write!(line, "{what:<EVENT_WIDTH$}")?;
    for &cell in &row.cells {
        let (mark, label, role) = drawn(cell);
        let text = format!("{mark} {label}");
        let text = text.trim_end();
        let padding = LANE_WIDTH - text.chars().count();
        write!(line, "{}{:padding$}", role.paint(text), "")?;
    }
    if let What::Event { extent, location, .. } = &row.what {
        let bytes = extent.map(|(offset, len)| format!("{len} B at {offset:#x}")).unwrap_or_default();
        let used = EVENT_WIDTH + LANE_WIDTH * row.cells.len() + BYTES_WIDTH;
        let place = shortened(location, WIDTH - used);
        write!(line, "{bytes:<BYTES_WIDTH$}{}", Role::Aside.paint(place))?;
    }
    writeln!(f, "{}", line.trim_end())
}

/// The crash itself, drawn across.
fn write_end(f: &mut String, end: &str, timeline: &Timeline) -> fmt::Result {
    let mut line = format!("{:━<EVENT_WIDTH$}", format!("━━━━━━━━ {end} "));
    for _ in &timeline.lanes {
        write!(line, "{:━<LANE_WIDTH$}", "┻")?;
    }
    writeln!(f, "{}", Role::Lost.paint(line))
}

const fn drawn(cell: Cell) -> (char, &'static str, Role) {
    match cell {
        Cell::Durable => ('│', "", Role::Durable),
        Cell::Pending => ('┊', "", Role::Kept),
        Cell::Stored(Fate::Durable) => ('■', "durable", Role::Durable),
        Cell::Stored(Fate::KeptEssential) => ('●', "kept", Role::Kept),
        Cell::Stored(Fate::Kept) => ('○', "kept", Role::Aside),
        Cell::Stored(Fate::Lost) => ('✗', "lost", Role::Lost),
        Cell::Stored(Fate::Torn) => ('◐', "torn", Role::Lost),
        Cell::Flushed => ('↓', "flushed", Role::Kept),
        Cell::Committed => ('▼', "durable", Role::Durable),
    }
}

/// The counts of stores, and what the drawing leaves out.
fn write_summary(f: &mut String, crash: &CrashReport, timeline: &Timeline) -> fmt::Result {
    let essential = crash.kept.iter().filter(|store| store.is_essential).count();
    let mut parts = Vec::new();
    match (crash.lost.len(), crash.is_minimal) {
        (0, _) => parts.push("nothing is lost".to_owned()),
        (lost, true) => parts.push(format!("{} lost, as the failure needs", stores(lost))),
        (lost, false) => parts.push(format!("{} lost", stores(lost))),
    }
    match (crash.kept.len() - essential, essential) {
        (0, 0) => {}
        (others, 0) if crash.is_minimal => {
            parts.push(format!("{} kept that need not be", stores(others)));
        }
        (others, 0) => parts.push(format!("{} kept", stores(others))),
        (0, essential) => parts.push(format!("{} kept, as the failure needs", stores(essential))),
        (others, essential) => {
            parts.push(format!("{} kept, as the failure needs", stores(essential)));
            parts.push(format!("{} kept that need not be", stores(others)));
        }
    }
    if timeline.more_lines > 0 {
        parts.push(format!("{} more lines are not drawn", timeline.more_lines));
    }
    writeln!(f)?;
    for line in wrapped(&parts.join("; "), WIDTH - 2) {
        writeln!(f, "  {line}")?;
    }
    Ok(())
}

fn stores(count: usize) -> String {
    if count == 1 { "1 store".to_owned() } else { format!("{count} stores") }
}

/// A place in at most `width` columns: a longer path is cut at the front.
fn shortened(location: &SourceLocation, width: usize) -> String {
    let whole = location.to_string();
    let len = whole.chars().count();
    if len <= width {
        return whole;
    }
    let end = |chars: usize| whole.chars().skip(len - chars).collect::<String>();
    // From the start of a component of the path, if that fits.
    match end(width - 1).split_once('/') {
        Some((_, names)) => format!("…/{names}"),
        None => format!("…{}", end(width - 1)),
    }
}

/// A label with wrapped text to its right.
fn write_item(f: &mut String, label: &str, text: &str) -> fmt::Result {
    let mut label = label;
    for line in text.lines().flat_map(|line| wrapped(line, WIDTH - LABEL_WIDTH - 2)) {
        writeln!(f, "  {label:<LABEL_WIDTH$}{line}")?;
        label = "";
    }
    Ok(())
}

/// The words of a line, on lines of at most `width` columns; a longer word stays whole.
pub(super) fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The role of a piece of text, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Lost,
    Kept,
    Durable,
    Heading,
    Aside,
}

impl Role {
    fn paint(self, text: impl Display) -> String {
        let code = match self {
            Self::Lost => "31",
            Self::Kept => "33",
            Self::Durable => "32",
            Self::Heading => "1",
            Self::Aside => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Crash, Explorer, Image, Run};
    use pm_core::Pmem;

    #[test]
    fn colours_do_not_change_the_text() {
        let operation = |run: &Run<()>| {
            run.pmem().store_u64(0, 1);
            run.ack(());
        };
        let check = |crash: &Crash<'_, ()>| match crash.acked() {
            [()] => crash.expect(crash.pmem().load_u64(0), [1]),
            _ => Ok(()),
        };
        let failure =
            Explorer::default().explore(&Image::zeroed(64), operation, check).expect_err("no flush");
        let (plain, coloured) = (failure.to_string(), coloured(|report| write_report(report, &failure)));
        assert!(coloured.contains("\x1b[31m✗ lost\x1b[0m"), "{coloured}");
        let uncoloured = coloured.split('\x1b').enumerate().map(|(number, part)| match number {
            0 => part,
            _ => part.split_once('m').expect("the end of a sequence").1,
        });
        assert_eq!(uncoloured.collect::<String>(), plain);
    }

    #[test]
    fn places_are_shortened_at_the_front() {
        let place = SourceLocation::new("crates/one/src/two.rs", 12, 5);
        assert_eq!(shortened(&place, 26), "crates/one/src/two.rs:12:5");
        assert_eq!(shortened(&place, 25), "…/one/src/two.rs:12:5");
        assert_eq!(shortened(&place, 8), "…rs:12:5");
    }

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible one", 7), ["incomprehensible", "one"]);
        assert_eq!(wrapped("", 7), [""]);
    }
}
