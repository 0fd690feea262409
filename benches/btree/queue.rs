//! A store that runs for long: what its operations cost and how much space it takes after millions of changes, against a new one.

use crate::ours;
use fastrand::Rng;
use miette::{IntoDiagnostic as _, Result, ensure};
use pm_bench::{Pair, Report, median, rounds_of};
use pm_btree::{Store, StoreOptions, Table, WriteError};
use pm_core::Region;
use std::path::Path;
use std::time::Instant;

/// The entries in the queue.
const LIVE: u64 = 1_000;

/// The operations of each measurement.
const MEASURED: u64 = 20_000;

/// The operations that are measured on the queue.
const OPERATIONS: [&str; 3] = ["first", "push and pop_first", "push and pop_last at a leaf's edge"];

/// The least rate after all pops, to that at the start.
const GOAL: f64 = 1.0 / 1.5;

/// The most bytes of extents for each live byte.
const SPACE_GOAL: f64 = 1.6;

/// The least share of the values of a new store that fit into an emptied one.
const REFILL_GOAL: f64 = 0.95;

type Queue = Table<u64, u64>;

/// The rates of the operations at the start, after the pops, and after an open behind them.
type Measured = [[f64; OPERATIONS.len()]; 3];

/// Measures a queue after `pops` pops, and the space after `updates` updates, and adds rows and facts.
pub(crate) fn add(
    report: &mut Report,
    directory: &Path,
    pops: u64,
    updates: u64,
    rounds: usize,
) -> Result<()> {
    eprintln!("a queue of {pops} pops");
    let measured: Vec<[Measured; 1]> = rounds_of(rounds, |_| queue(directory, pops))?;
    for (index, name) in OPERATIONS.into_iter().enumerate() {
        for (time, when) in [(1, format!("after {pops} pops")), (2, format!("after {pops} pops and an open"))]
        {
            let pair = |[rates]: &[Measured; 1]| Pair { ours: rates[time][index], theirs: rates[0][index] };
            let pairs = measured.iter().map(pair).collect();
            report.row(format!("{name}, {when}"), "at the start", "op/s", pairs, Some(GOAL));
        }
        let ns = median(measured.iter().map(|[rates]| 1e9 / rates[0][index]));
        report.fact(&format!("{name}, at the start"), format!("{ns:.0} ns"));
    }
    eprintln!("{updates} updates of random lengths");
    let (extents, live) = space(directory, updates)?;
    report
        .fact("space after updates of random lengths", format!("{:.2} times the live bytes", extents / live));
    let pair = Pair { ours: live * SPACE_GOAL, theirs: extents };
    report.row("live bytes, 1.6 times, after updates", "bytes of extents", "B", vec![pair], Some(1.0));
    let (refilled, new) = refill()?;
    let pair = Pair { ours: refilled as f64, theirs: new as f64 };
    report.row(
        "values of 600 B after values of 500 B",
        "a new store",
        "values",
        vec![pair],
        Some(REFILL_GOAL),
    );
    Ok(())
}

/// The rates of a queue of [`LIVE`] entries.
fn queue(directory: &Path, pops: u64) -> Result<Measured> {
    let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
    let store = ours::create(directory.path())?;
    let queue: Queue = store.table("queue").into_diagnostic()?;
    let mut next = 0;
    while next < LIVE {
        queue.insert(next, next).into_diagnostic()?;
        next += 1;
    }
    let at_start = rates(&queue, &mut next)?;
    while next < pops {
        push_and_pop(&queue, &mut next)?;
    }
    let after = rates(&queue, &mut next)?;
    ensure!(queue.len().into_diagnostic()? == LIVE, "the queue has another length");
    drop(queue);
    store.close().into_diagnostic()?;
    let store = Store::open(directory.path().join("ours"), &StoreOptions::new()).into_diagnostic()?;
    let reopened = rates(&store.table("queue").into_diagnostic()?, &mut next)?;
    Ok([at_start, after, reopened])
}

fn push_and_pop(queue: &Queue, next: &mut u64) -> Result<()> {
    queue.insert(*next, *next).into_diagnostic()?;
    let popped = queue.pop_first().into_diagnostic()?;
    ensure!(popped.is_some_and(|(key, _)| key.value() == *next - LIVE), "another entry is the first");
    *next += 1;
    Ok(())
}

fn rates(queue: &Queue, next: &mut u64) -> Result<[f64; OPERATIONS.len()]> {
    let rate = |operation: &mut dyn FnMut() -> Result<()>| {
        let begin = Instant::now();
        for _ in 0..MEASURED {
            operation()?;
        }
        Ok::<_, miette::Report>(MEASURED as f64 / begin.elapsed().as_secs_f64())
    };
    let first = rate(&mut || {
        let first = queue.first().into_diagnostic()?;
        ensure!(first.is_some_and(|(key, _)| key.value() == *next - LIVE), "another entry is the first");
        Ok(())
    })?;
    let pushed = rate(&mut || push_and_pop(queue, next))?;
    // Until the next push would make another leaf: it then does so each time.
    let edge = rate(&mut || {
        queue.insert(*next, *next).into_diagnostic()?;
        let popped = queue.pop_last().into_diagnostic()?;
        ensure!(popped.is_some_and(|(key, _)| key.value() == *next), "another entry is the last");
        Ok(())
    })?;
    Ok([first, pushed, edge])
}

/// The bytes of extents, and those of live values, some 100 MB, after updates of random keys with values of random lengths.
fn space(directory: &Path, updates: u64) -> Result<(f64, f64)> {
    const KEYS: u64 = 194_000;
    let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
    let store = ours::create(directory.path())?;
    let table = store.table::<u64, &[u8]>("values").into_diagnostic()?;
    let mut random = Rng::with_seed(7);
    let mut lengths = vec![0_u64; usize::try_from(KEYS).into_diagnostic()?];
    let value = [7; 1_000];
    for number in 0..KEYS + updates {
        let key = if number < KEYS { number } else { random.u64(..KEYS) };
        let length = random.usize(16..=1_000);
        table.insert(key, &value[..length]).into_diagnostic()?;
        lengths[usize::try_from(key).into_diagnostic()?] = length as u64;
    }
    // The key and its entry are alive, too.
    let live: u64 = lengths.iter().map(|length| length + 16).sum();
    Ok((store.stats().into_diagnostic()?.extent_bytes as f64, live as f64))
}

/// The values of 600 bytes that fit into 16 MiB after values of 500 bytes, and into a new store.
fn refill() -> Result<(u64, u64)> {
    let fill = |table: &Table<u64, &'static [u8]>, bytes: usize| {
        let value = vec![7; bytes];
        for key in 0.. {
            match table.insert(key, &value) {
                Ok(_) => (),
                Err(WriteError::Full) => return Ok(key),
                Err(error) => return Err(error).into_diagnostic(),
            }
        }
        unreachable!("the store becomes full")
    };
    let format = || {
        let region = Region::anonymous(16 << 20).into_diagnostic()?;
        Store::format(region, &StoreOptions::new()).into_diagnostic()
    };
    let (used, new) = (format()?, format()?);
    let table = used.table("t").into_diagnostic()?;
    fill(&table, 500)?;
    table.retain(|_, _| false).into_diagnostic()?;
    Ok((fill(&table, 600)?, fill(&new.table("t").into_diagnostic()?, 600)?))
}
