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
/// Each row is durable before the next is read, so every line that was reported survives a kill or a power failure. Loading the same input
/// again replaces the rows by themselves.
pub(crate) fn run(args: &Load, json: bool) -> miette::Result<()> {
    let (mut input, input_bytes) = Input::open(args)?;
    let handle = Handle::open(&args.file)?;
    let mut loader = Loader { handle: &handle, args, tables: HashMap::new(), inserted: 0, replaced: 0 };
    let progress = Progress::new(&args.file, json, input_bytes);
    let loaded = progress.during(|| loader.load(&mut input, &progress));
    let (Loader { inserted, replaced, .. }, lines) = (loader, progress.durable_lines());
    let name = args.input.display();
    loaded.wrap_err_with(|| format!("{name}: the first {} are durable", count(lines, "line", "lines")))?;
    handle.close()?;
    let path = &args.file;
    if json {
        let path = path.to_string_lossy();
        say(json!({ "path": path, "durable_lines": lines, "inserted": inserted, "replaced": replaced }));
    } else {
        let rows = count(inserted + replaced, "row", "rows");
        say(format_args!("{}: {rows} loaded, {inserted} inserted and {replaced} replaced", path.display()));
    }
    Ok(())
}

/// Inserts rows.
struct Loader<'a> {
    handle: &'a Handle,
    args: &'a Load,
    /// The tables that have been opened.
    tables: HashMap<String, DynTable<'a>>,
    inserted: u64,
    replaced: u64,
}

impl<'a> Loader<'a> {
    fn load(&mut self, input: &mut Input, progress: &Progress<'_>) -> miette::Result<()> {
        while let Some(item) = input.next()? {
            match self.take(&item) {
                Ok(()) => progress.advance(input.lines(), input.bytes()),
                Err(error) => return Err(error).wrap_err_with(|| format!("line {}", input.lines())),
            }
        }
        // The last line may have no end, which was unknown when its row was inserted.
        progress.advance(input.lines(), input.bytes());
        Ok(())
    }

    /// Inserts a row, durably, or creates a table.
    fn take(&mut self, item: &Item<'_>) -> miette::Result<()> {
        match item {
            Item::Row { table, key, value } => {
                let name = table.as_deref().or(self.args.table.as_deref()).unwrap_or_default();
                let table = self.table(name, &self.args.types, Some([key, value]))?;
                let is_new = table.insert(key, value).map_err(|error| self.handle.failure(error))?;
                *(if is_new { &mut self.inserted } else { &mut self.replaced }) += 1;
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
    fn table(&mut self, name: &str, types: &Types, row: Option<[&str; 2]>) -> miette::Result<&DynTable<'a>> {
        if !self.tables.contains_key(name) {
            self.tables.insert(name.to_owned(), self.handle.table_or_new(name, types, row)?);
        }
        Ok(&self.tables[name])
    }
}
