//! SQLite: a row for each object, with its contents as a blob. Each store is a transaction, durable when it returns: a write-ahead log with `synchronous = FULL`.

use crate::{Contained, Loaded, Stored, name, random, rate};
use miette::{IntoDiagnostic as _, Result, ensure};
use rusqlite::{Connection, params};
use std::hint::black_box;
use std::path::Path;

/// Rates of calls.
pub(crate) struct Rates {
    /// Copies of 64 B out of objects at random.
    pub(crate) loads: f64,
    /// Durable stores of 48 B to one object.
    pub(crate) stores: f64,
}

/// Measures a new database of `count` objects.
pub(crate) fn measure(directory: &Path, count: u64) -> Result<Rates> {
    let mut connection = Connection::open(directory.join("objects.sqlite")).into_diagnostic()?;
    // Room for all pages, so that none is read twice.
    let settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -1000000;
        CREATE TABLE objects (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, contents BLOB NOT NULL);";
    connection.execute_batch(settings).into_diagnostic()?;
    let transaction = connection.transaction().into_diagnostic()?;
    let mut insertion = transaction.prepare("INSERT INTO objects VALUES (?1, ?2, ?3)").into_diagnostic()?;
    for number in 0..count {
        let contents = [number.to_le_bytes()[0]; size_of::<Contained>()];
        insertion.execute(params![number.cast_signed(), name(number), contents]).into_diagnostic()?;
    }
    drop(insertion);
    transaction.commit().into_diagnostic()?;

    let mut load = connection.prepare("SELECT contents FROM objects WHERE number = ?1").into_diagnostic()?;
    let mut load = |number: u64| {
        let row = |row: &rusqlite::Row<'_>| {
            let mut loaded = [0; size_of::<Loaded>()];
            let contents = row.get_ref(0)?.as_blob()?;
            loaded.copy_from_slice(&contents[..size_of::<Loaded>()]);
            Ok(loaded)
        };
        black_box(load.query_row([number.cast_signed()], row).into_diagnostic()?);
        Ok(())
    };
    (0..count).try_for_each(&mut load)?;
    let loads = rate(count, |number| load(random(number, count)))?;

    let statement = "UPDATE objects SET contents = ?1 WHERE number = 0";
    let mut store = connection.prepare(statement).into_diagnostic()?;
    let stores = rate(count / 10, |number| {
        let contents = [number.to_le_bytes()[0]; size_of::<Stored>()];
        let rows = store.execute([contents]).into_diagnostic()?;
        ensure!(rows == 1, "{rows} rows were updated");
        Ok(())
    })?;
    Ok(Rates { loads, stores })
}
