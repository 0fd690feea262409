//! `pm store load`

use super::args::{Load, Types};
use super::handle::{DynTable, Handle};
use super::input::{Input, Item};
use super::kind::Kind;
use super::progress::Progress;
use crate::report::{count, say};
use miette::{Context as _, miette};
use serde_json::json;
use std::collections::HashMap;

/// `pm store load`
///
/// Each row, or each group of rows with `--group`, is durable before the next is read, so every line that was reported survives a kill or a power failure.
/// Loading the same input again replaces the rows by themselves.
pub(crate) fn run(args: &Load, json: bool) -> miette::Result<()> {
    let (mut input, input_bytes) = Input::open(args)?;
    let handle = if args.group == 1 {
        Handle::open(&args.file)?
    } else {
        Handle::open_grouped(&args.file, args.group)?
    };
    let mut loader =
        Loader { handle: &handle, args, tables: HashMap::new(), rows: Rows::default(), waiting: 0 };
    let progress = Progress::new(&args.file, json, input_bytes);
    let loaded = progress.during(|| loader.load(&mut input, &progress));
    let (Loader { rows, .. }, lines) = (loader, progress.durable_lines());
    let name = args.input.display();
    loaded.wrap_err_with(|| format!("{name}: the first {} are durable", count(lines, "line", "lines")))?;
    handle.close()?;
    let path = &args.file;
    let Rows { inserted, replaced, grouped } = rows;
    if json {
        let path = path.to_string_lossy();
        say(match args.group {
            1 => json!({ "path": path, "durable_lines": lines, "inserted": inserted, "replaced": replaced }),
            _ => json!({ "path": path, "durable_lines": lines, "rows": grouped }),
        });
    } else {
        let rows = count(inserted + replaced + grouped, "row", "rows");
        let detail = match args.group {
            1 => format!(", {inserted} inserted and {replaced} replaced"),
            group => format!(" in groups of {group}"),
        };
        say(format_args!("{}: {rows} loaded{detail}", path.display()));
    }
    Ok(())
}

/// The numbers of loaded rows.
#[derive(Debug, Default)]
struct Rows {
    inserted: u64,
    replaced: u64,
    /// Inserted or replaced: a change in a group does not tell.
    grouped: u64,
}

/// Inserts rows.
struct Loader<'a> {
    handle: &'a Handle,
    args: &'a Load,
    /// The tables that have been opened.
    tables: HashMap<String, DynTable>,
    rows: Rows,
    /// Rows that are not durable yet.
    waiting: u32,
}

impl Loader<'_> {
    fn load(&mut self, input: &mut Input, progress: &Progress<'_>) -> miette::Result<()> {
        while let Some(item) = input.next()? {
            self.take(&item).wrap_err_with(|| match self.waiting {
                0 => format!("line {}", input.lines()),
                waiting => {
                    format!("line {}, or one of the {waiting} rows of its group before it", input.lines())
                }
            })?;
            if self.waiting == 0 || self.waiting == self.args.group {
                self.sync(input, progress)?;
            }
        }
        // The last line may have no end, which was unknown when its row was inserted.
        self.sync(input, progress)
    }

    /// Makes all rows so far durable, and reports them.
    fn sync(&mut self, input: &Input, progress: &Progress<'_>) -> miette::Result<()> {
        if self.waiting != 0 {
            self.handle
                .sync()
                .wrap_err_with(|| format!("the {} before line {}", self.waiting, input.lines() + 1))?;
            self.waiting = 0;
        }
        progress.advance(input.lines(), input.bytes());
        Ok(())
    }

    /// Inserts a row, durably or in the group, or creates a table.
    fn take(&mut self, item: &Item<'_>) -> miette::Result<()> {
        match item {
            Item::Row { table, key, value } => {
                let name = table.as_deref().or(self.args.table.as_deref()).unwrap_or_default();
                let is_alone = self.args.group == 1;
                let table = self.table(name, &self.args.types, Some([key, value]))?;
                if is_alone {
                    let is_new = table.insert(key, value).map_err(|error| self.handle.failure(error))?;
                    *(if is_new { &mut self.rows.inserted } else { &mut self.rows.replaced }) += 1;
                } else {
                    table.insert_grouped(key, value).map_err(|error| self.handle.failure(error))?;
                    self.rows.grouped += 1;
                    self.waiting += 1;
                }
            }
            Item::Table { name, types: [key, value] } => {
                let kind = |name: &str| {
                    let kind = Kind::of_type_name(name);
                    kind.ok_or_else(|| {
                        miette!("the table has keys or values that pm cannot load: {key} to {value}")
                    })
                };
                let types = Types { key_type: Some(kind(key)?), value_type: Some(kind(value)?) };
                self.table(name, &types, None)?;
            }
        }
        Ok(())
    }

    /// The table, which is created with these types if it does not exist.
    fn table(&mut self, name: &str, types: &Types, row: Option<[&str; 2]>) -> miette::Result<&DynTable> {
        if !self.tables.contains_key(name) {
            self.tables.insert(name.to_owned(), self.handle.table_or_new(name, types, row)?);
        }
        Ok(&self.tables[name])
    }
}
