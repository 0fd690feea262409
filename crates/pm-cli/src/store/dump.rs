//! `pm store dump`, and rows as text.

use super::args::{Dump, Format};
use super::failure::StoreError;
use super::handle::Handle;
use super::kind::Cell;
use super::table::TextRange;
use crate::report::{count, say};
use core::ops::ControlFlow;
use indicatif::{ProgressBar, ProgressStyle};
use miette::{Context as _, IntoDiagnostic as _};
use serde_json::json;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The rows between two steps of the progress bar.
const ROWS_PER_STEP: u64 = 1 << 12;

/// `pm store dump`
pub(crate) fn run(args: &Dump, json: bool) -> miette::Result<()> {
    let handle = Handle::open_unchanged(&args.file)?;
    let by_name = args.output.as_deref().and_then(Format::of_path);
    let format = args.format.or(by_name).unwrap_or(if json { Format::Jsonl } else { Format::Csv });
    let Some(output) = &args.output else {
        let mut out = BufWriter::new(io::stdout().lock());
        let (written, missing) = write(&handle, args.table.as_deref(), format, &mut out)?;
        return match written.and_then(|_| out.flush()) {
            // The reader has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => {
                written.into_diagnostic().wrap_err("writing the rows").and_then(|()| missing.report(&handle))
            }
        };
    };
    let (written, missing) = write_file(&handle, args.table.as_deref(), format, output)?;
    let rows = written.into_diagnostic().wrap_err_with(|| format!("writing {}", output.display()))?;
    missing.report(&handle)?;
    if json {
        say(json!({ "path": args.file.to_string_lossy(), "output": output.to_string_lossy(), "rows": rows }));
    } else {
        say(format_args!("{}: {}", output.display(), count(rows, "row", "rows")));
    }
    Ok(())
}

/// The corrupted entries, which a dump leaves out.
#[derive(Default)]
struct Missing {
    count: u64,
    first: Option<StoreError>,
}

impl Missing {
    /// An error if there are any. All intact rows were written before.
    fn report(self, handle: &Handle) -> miette::Result<()> {
        let Some(first) = self.first else { return Ok(()) };
        let entries = count(self.count, "corrupted entry", "corrupted entries");
        Err(handle.failure(first)).wrap_err_with(|| format!("the dump has all rows but {entries}"))
    }
}

/// Writes a new file, durably: an older dump may be the only copy of something. The outer error is of the store, the inner one of the file.
fn write_file(
    handle: &Handle,
    table: Option<&str>,
    format: Format,
    output: &Path,
) -> miette::Result<(io::Result<u64>, Missing)> {
    let mut file = match File::create_new(output) {
        Ok(file) => BufWriter::new(file),
        Err(error) => return Ok((Err(error), Missing::default())),
    };
    let (rows, missing) = write(handle, table, format, &mut file)?;
    Ok((rows.and_then(|rows| file.into_inner()?.sync_all().map(|()| rows)), missing))
}

/// Writes a table, or all. Returns the number of rows, and what is missing. The outer error is of the store, the inner one of the output.
fn write(
    handle: &Handle,
    table: Option<&str>,
    format: Format,
    out: &mut impl Write,
) -> miette::Result<(io::Result<u64>, Missing)> {
    let tables = handle.tables();
    let tables: Vec<_> = tables.iter().filter(|info| table.is_none_or(|table| table == info.name)).collect();
    if let (Some(table), true) = (table, tables.is_empty()) {
        handle.table(table)?; // there is no such table
    }
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos} of {len} rows, {elapsed}");
    let bar = ProgressBar::new(tables.iter().filter_map(|info| handle.len(&info.name).ok()).sum());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message("writing");
    let mut rows = RowWriter::new(format, out);
    let mut written = Ok(());
    let mut missing = Missing::default();
    for info in tables {
        let name = table.is_none().then_some(info.name.as_str());
        if let Some(name) = name {
            written = rows.begin_table(name, [&info.key_type, &info.value_type]);
        }
        handle
            .table(&info.name)?
            .scan(&TextRange::default(), &mut |row| {
                match row {
                    Ok((key, value)) => written = rows.row(name, key, value),
                    Err(error) => {
                        missing.count += 1;
                        missing.first.get_or_insert(error);
                    }
                }
                if rows.count().is_multiple_of(ROWS_PER_STEP) {
                    bar.set_position(rows.count());
                }
                if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .map_err(|error| handle.failure(error))?;
        if written.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
    Ok((written.and_then(|()| rows.finish()), missing))
}

/// Writes rows.
pub(crate) struct RowWriter<W: Write> {
    out: Out<W>,
    count: u64,
}

enum Out<W: Write> {
    Csv(Box<csv::Writer<W>>),
    JsonLines(W),
    Text(W),
}

impl<W: Write> RowWriter<W> {
    /// In a format that `load` reads.
    fn new(format: Format, out: W) -> Self {
        let out = match format {
            Format::Csv => Out::Csv(Box::new(csv::Writer::from_writer(out))),
            Format::Jsonl => Out::JsonLines(out),
        };
        Self { out, count: 0 }
    }

    /// JSON lines, or text for a terminal: key and value with a tab between them, and control characters escaped.
    pub(crate) fn for_terminal(is_json: bool, out: W) -> Self {
        Self { out: if is_json { Out::JsonLines(out) } else { Out::Text(out) }, count: 0 }
    }

    /// The rows of a table follow, which has these types. CSV has no place for them.
    fn begin_table(&mut self, name: &str, [key, value]: [&str; 2]) -> io::Result<()> {
        match &mut self.out {
            Out::Csv(_) | Out::Text(_) => Ok(()),
            Out::JsonLines(out) => {
                writeln!(out, "{}", json!({ "table": name, "key_type": key, "value_type": value }))
            }
        }
    }

    /// Writes a row; the name of the table only if there are several.
    pub(crate) fn row(&mut self, table: Option<&str>, key: Cell<'_>, value: Cell<'_>) -> io::Result<()> {
        self.count += 1;
        match &mut self.out {
            Out::Csv(out) => {
                let (key, value) = (key.to_string(), value.to_string());
                Ok(out.write_record(table.into_iter().chain([key.as_str(), &value]))?)
            }
            Out::JsonLines(out) => {
                let mut row = json!({ "key": key.to_json(), "value": value.to_json() });
                if let Some(table) = table {
                    row["table"] = table.into();
                }
                writeln!(out, "{row}")
            }
            Out::Text(out) => {
                writeln!(out, "{}\t{}", escaped(&key.to_string()), escaped(&value.to_string()))
            }
        }
    }

    /// The number of rows that were written.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Writes what is buffered. Returns the number of rows.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        match &mut self.out {
            Out::Csv(out) => out.flush()?,
            Out::JsonLines(out) | Out::Text(out) => out.flush()?,
        }
        Ok(self.count)
    }
}

/// A text without control characters, such as the ends of lines.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}
