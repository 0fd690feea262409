//! Opening a store whose process was killed: how long it takes until the first change and the first lookup are done, and until all entries are counted.

use crate::records::Records;
use miette::{Context as _, IntoDiagnostic as _, Result, ensure};
use pm_bench::{Report, median};
use pm_btree::{Store, StoreOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable for the process that loads a store and is killed: the number of records. The file is its first argument.
const LOAD: &str = "PM_BENCH_BTREE_LOAD";

const TABLE: &str = "records";

/// In the process that is to load a store: loads it, and ends as if it were killed.
pub(crate) fn load_if_asked(records: &Records) -> Result<()> {
    let Some(count) = std::env::var(LOAD).ok().and_then(|count| count.parse().ok()) else { return Ok(()) };
    let path = std::env::args_os().nth(1).wrap_err("no file")?;
    let pool_bytes: u64 = (64 << 20) + count * 512;
    let store =
        Store::create(path, pool_bytes.next_multiple_of(1 << 20), &StoreOptions::new()).into_diagnostic()?;
    let table = store.table::<u64, &[u8]>(TABLE).into_diagnostic()?;
    let mut value = Vec::new();
    for key in (0..count).map(Records::key) {
        records.value_into(key, &mut value);
        table.insert(key, &value).into_diagnostic()?;
    }
    std::process::abort();
}

/// The times of one opening.
struct Times {
    open: Duration,
    put: Duration,
    get: Duration,
    len: Duration,
}

/// Loads a store in a process that is killed, opens it `rounds` times, with a kill each time, and adds the times to the report.
pub(crate) fn add(
    report: &mut Report,
    directory: &Path,
    records: &Records,
    count: u64,
    rounds: usize,
) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
        let path = directory.path().join("killed");
        let mut command = Command::new(std::env::current_exe().into_diagnostic()?);
        let status = command.arg(&path).env(LOAD, count.to_string()).stderr(Stdio::null()).status();
        ensure!(status.into_diagnostic()?.code().is_none(), "the loading process failed");
        times.push(open(&path, records, count)?);
    }
    let ms = |part: fn(&Times) -> Duration| median(times.iter().map(|times| 1e3 * part(times).as_secs_f64()));
    let [open, put, get, len] =
        [ms(|times| times.open), ms(|times| times.put), ms(|times| times.get), ms(|times| times.len)];
    let all = ms(|times| times.open + times.put + times.get);
    report.fact(
        &format!("open after a kill, {count} records"),
        format!("{all:.2} ms: open {open:.2}, first put {put:.2}, first get {get:.2}; then len {len:.1} ms"),
    );
    Ok(())
}

fn open(path: &Path, records: &Records, count: u64) -> Result<Times> {
    let (new, old) = (Records::key(count), Records::key(count / 2));
    let mut value = Vec::new();
    records.value_into(new, &mut value);
    let begin = Instant::now();
    let store = Store::open(path, &StoreOptions::new()).into_diagnostic()?;
    let table = store.table::<u64, &[u8]>(TABLE).into_diagnostic()?;
    let opened = begin.elapsed();
    table.insert(new, &value).into_diagnostic()?;
    let put = begin.elapsed();
    let found = table.get(old).into_diagnostic()?.wrap_err("a record is lost")?;
    let got = begin.elapsed();
    ensure!(records.is_value(old, found.value()), "a record has another value");
    let len = table.len().into_diagnostic()?;
    ensure!(len == count + 1, "{len} records");
    Ok(Times { open: opened, put: put - opened, get: got - put, len: begin.elapsed() - got })
}
