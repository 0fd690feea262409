//! SQLite, whose file system is killed amid transactions: each that it has acknowledged is there afterwards, and no part of another.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, ensure, miette};
use xtask::process;

use super::super::mounted::Mounted;

/// The journal modes, and whether SQLite calls fsync. It need not: each call is durable when it returns.
const MODES: [(&str, &str); 4] = [("wal", "full"), ("wal", "off"), ("delete", "full"), ("delete", "off")];

/// The kills in each mode.
const KILLS: u64 = 6;

/// The transactions that SQLite is given: more than it completes before the kill.
const TRANSACTIONS: u64 = 50_000;

/// The rows of each transaction.
const ROWS: u64 = 3;

/// The contents of a row, from 7 to some 3,000 bytes.
const CONTENTS: &str = "printf('%0*d', 7 + (tx * 37 + row) % 3000, tx)";

/// Runs SQLite in each mode.
pub(super) fn run(mounted: &mut Mounted) -> Result<()> {
    for (journal, synchronous) in MODES {
        let name = format!("{journal}-{synchronous}.db");
        create(&mounted.mount.join(&name), journal)?;
        let mut committed = 0;
        for kill in 0..KILLS {
            // At different states of the journal, and of its checkpoint.
            let acknowledged = committed + 50 + kill * 173;
            let mut child = start(&mounted.mount.join(&name), committed + 1, synchronous)?;
            let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
            let mut last = committed;
            while last < acknowledged {
                let line =
                    lines.next().ok_or_else(|| miette!("sqlite3 has ended after transaction {last}"))?;
                last = line.into_diagnostic()?.parse().into_diagnostic()?;
            }
            // In the middle of later transactions, which take some 100 µs.
            thread::sleep(Duration::from_micros(kill * 437));
            mounted.kill()?;
            for line in lines {
                last = line.into_diagnostic()?.parse().into_diagnostic()?;
            }
            let ended = child.wait().into_diagnostic()?;
            ensure!(!ended.success(), "sqlite3 has succeeded without its file system");
            mounted.pmfs(&["fsck"])?;
            mounted.start()?;
            committed = check(&mounted.mount.join(&name), last)?;
        }
        println!(
            "sqlite: {journal}, synchronous {synchronous}: {KILLS} kills, {committed} transactions, none lost"
        );
    }
    Ok(())
}

/// Creates an empty database.
fn create(database: &Path, journal: &str) -> Result<()> {
    let tables = "CREATE TABLE rows (tx, row, contents, PRIMARY KEY (tx, row)); CREATE INDEX of_contents ON rows (contents);";
    query(database, &format!("PRAGMA journal_mode = {journal}; {tables}")).map(drop)
}

/// Starts SQLite with transactions from this number on. It prints the number of each that is committed.
fn start(database: &Path, first: u64, synchronous: &str) -> Result<Child> {
    let script = tempfile::NamedTempFile::new().into_diagnostic()?;
    let transactions = (first..first + TRANSACTIONS).map(|tx| {
        let rows = (0..ROWS).map(|row| format!("({tx}, {row})")).collect::<Vec<_>>().join(", ");
        // Some also change earlier rows, and so pages in the middle.
        let again = if tx % 20 == 0 { "UPDATE rows SET contents = contents || '' WHERE tx % 50 = 7; " } else { "" };
        format!(
            "BEGIN; WITH new (tx, row) AS (VALUES {rows}) INSERT INTO rows SELECT tx, row, {CONTENTS} FROM new; {again}COMMIT; SELECT {tx};\n"
        )
    });
    let text = format!("PRAGMA synchronous = {synchronous};\n{}", transactions.collect::<String>());
    fs::write(script.path(), text).into_diagnostic()?;
    // By default it prints to a pipe in blocks, long after the commits.
    let mut command = Command::new("stdbuf");
    command.args(["--output=L", "sqlite3", "-batch", "-bail"]).arg(database);
    let input = File::open(script.path()).into_diagnostic()?;
    let command = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().into_diagnostic().wrap_err("stdbuf sqlite3")
}

/// Checks a database that has acknowledged a transaction, and returns the number of the last one.
fn check(database: &Path, acknowledged: u64) -> Result<u64> {
    let is_intact = query(database, "PRAGMA integrity_check;")?;
    ensure!(is_intact == "ok", "{}: integrity_check: {is_intact}", database.display());
    let counts = query(
        database,
        &format!(
            "SELECT COUNT(DISTINCT tx), MAX(tx), COUNT(*), COUNT(*) FILTER (WHERE contents = {CONTENTS}) FROM rows;"
        ),
    )?;
    let numbers: Vec<u64> = counts.split('|').filter_map(|number| number.parse().ok()).collect();
    let last = numbers.get(1).copied().unwrap_or_default();
    ensure!(
        numbers == [last, last, last * ROWS, last * ROWS],
        "{}: transactions, the last one, rows, and rows with their contents: {counts}",
        database.display()
    );
    ensure!(
        last >= acknowledged,
        "{}: transaction {acknowledged} was acknowledged, and {last} is the last",
        database.display()
    );
    Ok(last)
}

/// The output of SQLite for statements.
fn query(database: &Path, sql: &str) -> Result<String> {
    let said = process::output(Command::new("sqlite3").args(["-batch", "-bail"]).arg(database).arg(sql))?;
    Ok(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_rows_and_transactions_are_found() -> Result<()> {
        let directory = tempfile::tempdir().into_diagnostic()?;
        let database = directory.path().join("test.db");
        create(&database, "wal")?;
        let mut child = start(&database, 1, "off")?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        assert_eq!(
            lines.take(10).filter_map(Result::ok).collect::<Vec<_>>().join(" "),
            "1 2 3 4 5 6 7 8 9 10"
        );
        child.kill().into_diagnostic()?;
        child.wait().into_diagnostic()?;
        let last = check(&database, 10)?;
        assert!(check(&database, last + 1).is_err());
        for (loss, repair) in [
            (
                "UPDATE rows SET row = 9 WHERE tx = 3 AND row = 1;",
                "UPDATE rows SET row = 1 WHERE tx = 3 AND row = 9;",
            ),
            (
                "CREATE TABLE old AS SELECT * FROM rows; DELETE FROM rows WHERE tx = 5 AND row = 2;",
                "INSERT INTO rows SELECT * FROM old WHERE tx = 5 AND row = 2;",
            ),
            ("DELETE FROM rows WHERE tx = 5;", "INSERT INTO rows SELECT * FROM old WHERE tx = 5;"),
        ] {
            query(&database, loss)?;
            assert!(check(&database, last).is_err(), "{loss}");
            query(&database, repair)?;
            check(&database, last)?;
        }
        Ok(())
    }
}
