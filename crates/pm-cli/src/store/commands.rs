//! The commands of `pm store` on single keys, ranges and the whole store.

use super::args::{Key, Put, Scan, Sized, StoreCommand, Target};
use super::cluster;
use super::dump::{self, RowWriter};
use super::failure::{Failure, StoreError};
use super::handle::Handle;
use super::load;
use super::table::TextRange;
use crate::findings::{self, CORRUPTED, Finding, end_with_corruption, print_findings};
use crate::report::{bytes, count, field, say};
use crate::view::View;
use core::ops::ControlFlow;
use miette::{Context as _, IntoDiagnostic as _};
use serde_json::{Value as Json, json};
use std::io::{self, BufWriter};
use std::path::Path;
use std::process::ExitCode;

/// Runs a command. A command that finds corruption prints the error and returns the exit code for it.
pub(crate) fn run(command: &StoreCommand, json: bool) -> miette::Result<ExitCode> {
    let result = match command {
        StoreCommand::Create(args) => create(args, json),
        StoreCommand::Put(args) => put(args, json),
        StoreCommand::Get(args) => get(args, json),
        StoreCommand::Remove(args) => remove(args, json),
        StoreCommand::Scan(args) => scan(args, json),
        StoreCommand::Load(args) => load::run(args, json),
        StoreCommand::Dump(args) => dump::run(args, json),
        StoreCommand::Grow(args) => grow(args, json),
        StoreCommand::Compact(args) => compact(args, json),
        StoreCommand::Stat(args) => stat(args, json),
        StoreCommand::Check(args) => return check(args, json),
        StoreCommand::Serve(args) => cluster::run_serve(args, json),
        StoreCommand::Cluster(args) => cluster::run_cluster(args, json),
    };
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(report) if is_corruption(&report) => Ok(end_with_corruption(&report, json)),
        Err(report) => Err(report),
    }
}

fn is_corruption(report: &miette::Report) -> bool {
    report.downcast_ref::<Failure>().is_some_and(|failure| failure.corruption().is_some())
}

fn create(args: &Sized, json: bool) -> miette::Result<()> {
    Handle::create(&args.file, args.size.0)?.close()?;
    describe(&args.file, json)
}

fn grow(args: &Sized, json: bool) -> miette::Result<()> {
    let mut handle = Handle::open(&args.file)?;
    handle.grow(args.size.0)?;
    handle.close()?;
    describe(&args.file, json)
}

fn compact(args: &Target, json: bool) -> miette::Result<()> {
    let mut handle = Handle::open(&args.file)?;
    let released = handle.compact()?;
    handle.close()?;
    let path = &args.file;
    if json {
        say(json!({ "path": path.to_string_lossy(), "released_bytes": released }));
    } else {
        say(format_args!("{}: {} can be used again", path.display(), bytes(released)));
    }
    Ok(())
}

fn put(args: &Put, json: bool) -> miette::Result<()> {
    let handle = Handle::open(&args.file)?;
    let is_new = handle
        .table_or_new(&args.table, &args.types, Some([&args.key, &args.value]))?
        .insert(&args.key, &args.value)
        .map_err(|error| handle.failure(error))?;
    handle.close()?;
    if json {
        let path = args.file.to_string_lossy();
        say(json!({ "path": path, "table": args.table, "key": args.key, "inserted": is_new }));
    } else {
        let what = if is_new { "inserted" } else { "replaced" };
        say(format_args!("{}: table {:?}: {:?} {what}", args.file.display(), args.table, args.key));
    }
    Ok(())
}

fn get(args: &Key, json: bool) -> miette::Result<()> {
    let handle = Handle::open_unchanged(&args.file)?;
    let is_found = handle.table(&args.table)?.get(&args.key, &mut |value| {
        if json { say(json!({ "key": args.key, "value": value.to_json() })) } else { say(value) }
    });
    if is_found.map_err(|error| handle.failure(error))? { Ok(()) } else { Err(no_key(&handle, args)) }
}

fn remove(args: &Key, json: bool) -> miette::Result<()> {
    let handle = Handle::open(&args.file)?;
    let is_found = handle.table(&args.table)?.remove(&args.key).map_err(|error| handle.failure(error))?;
    let missing = no_key(&handle, args);
    handle.close()?;
    if !is_found {
        return Err(missing);
    }
    if json {
        let path = args.file.to_string_lossy();
        say(json!({ "path": path, "table": args.table, "key": args.key, "removed": true }));
    } else {
        say(format_args!("{}: table {:?}: {:?} removed", args.file.display(), args.table, args.key));
    }
    Ok(())
}

fn no_key(handle: &Handle, args: &Key) -> miette::Report {
    let (table, key) = (args.table.clone(), args.key.clone());
    handle.failure(StoreError::NoKey { table, key }).into()
}

fn scan(args: &Scan, json: bool) -> miette::Result<()> {
    let handle = Handle::open_unchanged(&args.file)?;
    let range = TextRange { from: args.from.as_deref(), to: args.to.as_deref(), is_reversed: args.reverse };
    let table = handle.table(&args.table)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let (mut written, mut scanned) = (Ok(()), Ok(()));
    let mut rows = RowWriter::for_terminal(json, BufWriter::new(io::stdout().lock()));
    if left != 0 {
        table
            .scan(&range, &mut |row| {
                match row {
                    Ok((key, value)) => written = rows.row(None, key, value),
                    Err(error) => scanned = Err(error),
                }
                left -= 1;
                if written.is_err() || scanned.is_err() || left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .map_err(|error| handle.failure(error))?;
    }
    // The rows before an error are printed.
    let written = written.and_then(|()| rows.finish());
    scanned.map_err(|error| handle.failure(error))?;
    match written {
        // The reader has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map(drop).into_diagnostic().wrap_err("writing the rows"),
    }
}

fn stat(args: &Target, json: bool) -> miette::Result<()> {
    describe(&args.file, json)
}

/// Prints the properties of the store at a path. Fails after that if a table cannot be read.
fn describe(path: &Path, json: bool) -> miette::Result<()> {
    let handle = Handle::open_unchanged(path)?;
    let tables = handle.tables();
    let lens: Vec<Result<u64, Failure>> = tables.iter().map(|table| handle.len(&table.name)).collect();
    let keys: u64 = lens.iter().flatten().sum();
    let stats = handle.store().stats().into_diagnostic()?;
    if json {
        let tables = tables.iter().zip(&lens).map(|(table, len)| {
            json!({
                "name": table.name, "key_type": table.key_type, "value_type": table.value_type,
                "len": len.as_ref().ok(),
            })
        });
        say(json!({
            "path": path.to_string_lossy(),
            "tables": tables.collect::<Vec<Json>>(),
            "keys": keys,
            "pool_bytes": stats.pool_bytes,
            "extent_bytes": stats.extent_bytes,
            "used_bytes": stats.used_bytes,
        }));
        return all_readable(lens);
    }
    let (path, keys) = (path.display(), count(keys, "key", "keys"));
    say(format_args!("{path}: a store of {keys} in {}", count(tables.len() as u64, "table", "tables")));
    let (used, extents, pool) = (bytes(stats.used_bytes), bytes(stats.extent_bytes), bytes(stats.pool_bytes));
    field("space", format_args!("{used} in use, of {extents} in extents, in a pool of {pool}"));
    for (table, len) in tables.iter().zip(&lens) {
        let keys = len.as_ref().map_or_else(|_| "unreadable".to_owned(), |keys| count(*keys, "key", "keys"));
        let (name, key, value) = (&table.name, &table.key_type, &table.value_type);
        field("table", format_args!("{name}: {keys}, {key} to {value}"));
    }
    all_readable(lens)
}

/// The first error.
fn all_readable(lens: Vec<Result<u64, Failure>>) -> miette::Result<()> {
    lens.into_iter().find_map(Result::err).map_or(Ok(()), |failure| Err(failure.into()))
}

fn check(args: &Target, json: bool) -> miette::Result<ExitCode> {
    let path = &args.file;
    let mut findings = match View::open(path) {
        Ok(view) => view.check(|_| ()).findings,
        Err(error) => match error.corruption() {
            Some(message) => vec![Finding::fatal(message)],
            None => return Err(Failure::new(path)(error).into()),
        },
    };
    let mut keys = None;
    match Handle::open_unchanged(path) {
        Ok(handle) => {
            let report = handle.store().check().into_diagnostic()?;
            findings.extend(report.corruptions.iter().map(findings::of_store));
            keys = Some(report.entries);
        }
        // What keeps the heap from opening has been found.
        Err(_) if findings.iter().any(Finding::is_fatal) => {}
        Err(error) => findings.push(Finding::fatal(error.corruption().ok_or(error)?)),
    }
    if json {
        let list = findings::to_json(&findings);
        say(
            json!({ "path": path.to_string_lossy(), "clean": list.is_empty(), "findings": list, "keys": keys }),
        );
    } else if findings.is_empty() {
        let keys = count(keys.unwrap_or_default(), "key", "keys");
        say(format_args!("{}: sound: the heap and all nodes and records of {keys}", path.display()));
    } else {
        print_findings(path, &findings, "heap");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pm_btree::{DecodeError, EncodeError, ReadError};

    #[test]
    fn corruption_is_found_below_contexts() {
        for (error, expected) in [
            (ReadError::Decode(DecodeError::Utf8 { valid_bytes: 7 }), true),
            (ReadError::Encode(EncodeError::Nul { position: 7 }), false),
        ] {
            let failure = Failure::new(Path::new("s.pm"))(error);
            let report = Err::<(), _>(failure).wrap_err("line 7").wrap_err("the first 6 lines").unwrap_err();
            assert_eq!(is_corruption(&report), expected, "{report:?}");
        }
    }
}
