//! Batches of random 8-byte keys with 8-byte values: the time by key of long batches and of short ones.

use crate::ours;
use crate::records::Records;
use miette::{IntoDiagnostic as _, Result, ensure};
use pm_bench::{Pair, Report, median, rounds_of};
use std::path::Path;
use std::time::{Duration, Instant};

/// The lengths of a long batch, and of short ones with as many keys together.
const LENGTHS: [u64; 2] = [100_000, 1_000];

/// The least rate of the long batch, to that of the short ones.
const GOAL: f64 = 0.5;

/// Measures batches into empty tables, and into a table of `count` random keys, in this many rounds, and adds rows and facts.
pub(crate) fn add(report: &mut Report, directory: &Path, count: u64, rounds: usize) -> Result<()> {
    for (name, count) in [("empty tables".to_owned(), 0), (format!("a table of {count}"), count)] {
        eprintln!("batches into {name}");
        let measured: Vec<[f64; LENGTHS.len()]> =
            rounds_of(rounds, |index| keys_per_second(directory, count, LENGTHS[index]))?;
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let ns = median(measured.iter().map(|round| 1e9 / round[index]));
            report.fact(&format!("batch of {length} into {name}"), format!("{ns:.0} ns a key"));
        }
        let pairs = measured.iter().map(|[long, short]| Pair { ours: *long, theirs: *short }).collect();
        let [long, short] = LENGTHS;
        let row = format!("batch of {long} into {name}");
        report.row(row, format!("batches of {short}"), "key/s", pairs, Some(GOAL));
    }
    Ok(())
}

/// The keys per second of batches of this length, as many as the long batch has keys, into a table of `count` keys; if that is 0, each into another
/// empty table.
fn keys_per_second(directory: &Path, count: u64, length: u64) -> Result<f64> {
    let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
    let store = ours::create(directory.path())?;
    let mut time = Duration::ZERO;
    let mut numbers = count..count + LENGTHS[0];
    for number in 0..LENGTHS[0] / length {
        let name = if count == 0 { format!("table {number}") } else { "table".to_owned() };
        let table = store.table::<u64, u64>(&name).into_diagnostic()?;
        if number == 0 {
            (0..count)
                .try_for_each(|number| table.insert(Records::key(number), number).map(drop))
                .into_diagnostic()?;
        }
        let begin = Instant::now();
        let mut batch = store.batch();
        for number in numbers.by_ref().take(usize::try_from(length).into_diagnostic()?) {
            batch.insert(&table, Records::key(number), number).into_diagnostic()?;
        }
        batch.commit().into_diagnostic()?;
        time += begin.elapsed();
        let len = table.len().into_diagnostic()?;
        ensure!(count == 0 && len == length || len == count + (number + 1) * length, "{len} keys");
    }
    Ok(LENGTHS[0] as f64 / time.as_secs_f64())
}
