//! Rows from CSV and JSON lines.

use super::args::{Format, Load};
use csv::StringRecord;
use miette::{Context as _, IntoDiagnostic as _, miette};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};

/// What the input says next.
#[derive(Debug, PartialEq)]
pub(crate) enum Item<'a> {
    /// A key and its value.
    Row { table: Option<Cow<'a, str>>, key: Cow<'a, str>, value: Cow<'a, str> },
    /// The types of a table, before its rows.
    Table { name: String, types: [String; 2] },
}

/// The rows of a file or of standard input.
pub(crate) enum Input {
    Csv(CsvInput),
    JsonLines(JsonInput),
}

impl Input {
    /// Opens the input. Returns its length, too, if it is known.
    pub(crate) fn open(args: &Load) -> miette::Result<(Self, Option<u64>)> {
        let name = args.input.display();
        let Some(format) = args.format.or_else(|| Format::of_path(&args.input)) else {
            return Err(miette!(help = "choose one with --format", "{name}: the name shows no format"));
        };
        let (source, len): (Box<dyn Read>, _) = if args.input.as_os_str() == "-" {
            (Box::new(std::io::stdin()), None)
        } else {
            let opened = File::open(&args.input).and_then(|file| Ok((file.metadata()?, file)));
            let (metadata, file) = opened.into_diagnostic().wrap_err_with(|| format!("{name}"))?;
            (Box::new(file), metadata.is_file().then_some(metadata.len()))
        };
        Ok((Self::new(args, format, source)?, len))
    }

    fn new(args: &Load, format: Format, source: Box<dyn Read>) -> miette::Result<Self> {
        let source = Source { inner: source, bytes: 0, ends_in_line: false };
        let has_table = args.table.is_none();
        Ok(match format {
            Format::Csv => Self::Csv(CsvInput::new(args, source, has_table)?),
            Format::Jsonl if args.header => {
                return Err(miette!("JSON lines have no --header: every line has the names of its fields"));
            }
            Format::Jsonl => {
                let field =
                    |name: &Option<String>, default: &str| name.as_deref().unwrap_or(default).to_owned();
                Self::JsonLines(JsonInput {
                    reader: BufReader::new(source),
                    line: Vec::new(),
                    lines: 0,
                    has_table,
                    key: field(&args.key_column, "key"),
                    value: field(&args.value_column, "value"),
                })
            }
        })
    }

    /// The next row, or `None` at the end.
    pub(crate) fn next(&mut self) -> miette::Result<Option<Item<'_>>> {
        match self {
            Self::Csv(input) => input.next(),
            Self::JsonLines(input) => input.next(),
        }
    }

    /// The number of lines up to the end of the last row.
    pub(crate) fn lines(&self) -> u64 {
        match self {
            Self::Csv(input) => input.lines(),
            Self::JsonLines(input) => input.lines,
        }
    }

    /// The number of bytes that were read, possibly ahead of the last row.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Csv(input) => input.reader.get_ref().bytes,
            Self::JsonLines(input) => input.reader.get_ref().bytes,
        }
    }
}

/// Rows of CSV.
pub(crate) struct CsvInput {
    reader: csv::Reader<Source>,
    record: StringRecord,
    columns: Columns,
    is_at_end: bool,
}

/// The positions of the columns in a row.
struct Columns {
    table: Option<usize>,
    key: usize,
    /// All other columns if `None`.
    value: Option<usize>,
}

impl CsvInput {
    fn new(args: &Load, source: Source, has_table: bool) -> miette::Result<Self> {
        let mut reader = csv::ReaderBuilder::new().has_headers(args.header).from_reader(source);
        let header =
            if args.header { reader.headers().into_diagnostic()?.clone() } else { StringRecord::new() };
        let position = |column: &String| match column.parse::<usize>() {
            Ok(0) => Err(miette!("columns are numbered from 1")),
            Ok(number) => Ok(number - 1),
            Err(_) if !args.header => Err(miette!(
                help = "--header, or its number from 1",
                "column {column:?} has a name, but the CSV has no header"
            )),
            Err(_) => header.iter().position(|name| name == column).ok_or_else(|| {
                let names = header.iter().collect::<Vec<_>>().join(", ");
                miette!(help = format!("the columns are: {names}"), "the CSV has no column {column:?}")
            }),
        };
        let columns = Columns {
            table: has_table.then_some(0),
            key: args.key_column.as_ref().map(position).transpose()?.unwrap_or(usize::from(has_table)),
            value: args.value_column.as_ref().map(position).transpose()?,
        };
        Ok(Self { reader, record: StringRecord::new(), columns, is_at_end: false })
    }

    fn next(&mut self) -> miette::Result<Option<Item<'_>>> {
        if !self.reader.read_record(&mut self.record).into_diagnostic()? {
            self.is_at_end = true;
            return Ok(None);
        }
        let Columns { table, key, value } = self.columns;
        let line = self.record.position().map_or(0, csv::Position::line);
        let missing = |column: usize| {
            miette!(help = "each row has a key and a value", "line {line} has no column {}", column + 1)
        };
        let column = |at: usize| self.record.get(at).map(Cow::Borrowed).ok_or_else(|| missing(at));
        let value = match value {
            Some(at) => column(at)?,
            None => {
                let rest = || (0..self.record.len()).filter(|at| Some(*at) != table && *at != key);
                match rest().count() {
                    0 => return Err(missing(self.record.len())),
                    1 => column(rest().next_back().unwrap_or_default())?,
                    _ => Cow::Owned(to_csv(rest().filter_map(|at| self.record.get(at)))?),
                }
            }
        };
        Ok(Some(Item::Row { table: table.map(column).transpose()?, key: column(key)?, value }))
    }

    fn lines(&self) -> u64 {
        let source = self.reader.get_ref();
        let is_cut_off = self.is_at_end && source.bytes > 0 && !source.ends_in_line;
        self.reader.position().line() - 1 + u64::from(is_cut_off)
    }
}

/// Columns as CSV, without the end of the line.
fn to_csv<'a>(columns: impl Iterator<Item = &'a str>) -> miette::Result<String> {
    let mut writer = csv::WriterBuilder::new().buffer_capacity(256).from_writer(Vec::new());
    writer.write_record(columns).into_diagnostic()?;
    let mut bytes = writer.into_inner().into_diagnostic()?;
    bytes.pop();
    String::from_utf8(bytes).into_diagnostic()
}

/// Rows of JSON lines.
pub(crate) struct JsonInput {
    reader: BufReader<Source>,
    line: Vec<u8>,
    lines: u64,
    has_table: bool,
    /// The field with the key.
    key: String,
    /// The field with the value.
    value: String,
}

impl JsonInput {
    fn next(&mut self) -> miette::Result<Option<Item<'_>>> {
        loop {
            self.line.clear();
            if self.reader.read_until(b'\n', &mut self.line).into_diagnostic()? == 0 {
                return Ok(None);
            }
            self.lines += 1;
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        let line = self.lines;
        let mut fields: Map<String, Json> = serde_json::from_slice(&self.line)
            .into_diagnostic()
            .wrap_err_with(|| format!("line {line} is no JSON object"))?;
        let mut field = |name: &str| match fields.remove(name) {
            Some(Json::Null) | None => Err(miette!("line {line} has no field {name:?}")),
            Some(Json::String(text)) => Ok(text),
            // Numbers as text; objects and arrays as compact JSON.
            Some(other) => Ok(other.to_string()),
        };
        let table = self.has_table.then(|| field("table")).transpose()?;
        let key = match field(&self.key) {
            Ok(key) => key,
            // The line with the types of a table.
            Err(error) => {
                let types = field("key_type").and_then(|key| Ok([key, field("value_type")?]));
                return match (table, types) {
                    (Some(name), Ok(types)) => Ok(Some(Item::Table { name, types })),
                    _ => Err(error),
                };
            }
        };
        let (table, value) = (table.map(Cow::Owned), Cow::Owned(field(&self.value)?));
        Ok(Some(Item::Row { table, key: Cow::Owned(key), value }))
    }
}

/// A source that counts its bytes.
pub(crate) struct Source {
    inner: Box<dyn Read>,
    bytes: u64,
    /// Whether the last byte ends a line.
    ends_in_line: bool,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.bytes += len as u64;
        if let Some(last) = buffer[..len].last() {
            self.ends_in_line = *last == b'\n';
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::store::StoreCommand;
    use clap::Parser as _;
    use std::io::Cursor;

    /// The rows of a text, each with the number of lines up to its end; and the number of all lines.
    fn rows(options: &str, text: &'static str) -> (Vec<(u64, String)>, u64) {
        let args = format!("pm store load s.pm t - {options}");
        let Command::Store(StoreCommand::Load(args)) = Cli::parse_from(args.split_whitespace()).command
        else {
            unreachable!("it is a load");
        };
        let mut input = Input::new(&args, args.format.unwrap(), Box::new(Cursor::new(text))).unwrap();
        let mut rows = Vec::new();
        while let Some(item) = input.next().unwrap() {
            let Item::Row { table: None, key, value } = item else { panic!("{item:?}") };
            let row = format!("{key}:{value}");
            rows.push((input.lines(), row));
        }
        assert_eq!(input.bytes(), text.len() as u64);
        (rows, input.lines())
    }

    #[track_caller]
    fn assert_rows(options: &str, text: &'static str, expected: &[(u64, &str)], lines: u64) {
        let expected = expected.iter().map(|(lines, row)| (*lines, (*row).to_owned())).collect();
        assert_eq!(rows(options, text), (expected, lines), "{text:?}");
    }

    #[test]
    fn lines_of_csv_are_counted_up_to_the_end_of_each_row() {
        let csv = "--format csv";
        assert_rows(csv, "", &[], 0);
        assert_rows(csv, "a,1\nb,2\n", &[(1, "a:1"), (2, "b:2")], 2);
        assert_rows(csv, "a,\"1\n2\"\n\nb,2\n", &[(2, "a:1\n2"), (4, "b:2")], 4);
        assert_rows("--format csv --header", "x,y\na,1\n", &[(2, "a:1")], 2);
        assert_rows("--format csv --header --key-column y", "x,y\na,1\n", &[(2, "1:a")], 2);
        // A last line without an end counts only at the end of the input.
        assert_rows(csv, "a,1\nb,2", &[(1, "a:1"), (1, "b:2")], 2);
        // The end of a line is two characters, of which the second is read with the next row.
        assert_rows(csv, "a,1\r\nb,2\r\n", &[(0, "a:1"), (1, "b:2")], 2);
        assert_rows(csv, "a,1,\"2,3\"\n", &[(1, "a:1,\"2,3\"")], 1);
    }

    #[test]
    fn lines_of_json_are_counted() {
        let json = "--format jsonl";
        assert_rows(json, "", &[], 0);
        let text = "{\"key\":\"a\",\"value\":1}\r\n\n {\"value\":[ ],\"key\":2}";
        assert_rows(json, text, &[(1, "a:1"), (3, "2:[]")], 3);
    }
}
