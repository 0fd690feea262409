//! More about ours: two threads against one, the memory that it uses, and the bound that the machine sets on puts. Other sizes of values and string
//! keys against LMDB.

use crate::records::Records;
use crate::workload::{NAMES, Rates, Sizes, Workload};
use crate::{lmdb, ours};
use fastrand::Rng;
use miette::{IntoDiagnostic as _, Result, ensure};
use pm_bench::{Pair, Report, median, rounds_of};
use pm_core::{Pmem as _, RegionOptions};
use std::path::Path;
use std::time::{Duration, Instant};

/// The sizes of values besides that of the main table.
const VALUE_BYTES: [usize; 3] = [10, 1024, 4096];

/// The most records of a run with other values or keys, which have up to 4 KiB.
const RECORDS_MAX: u64 = 100_000;

/// The operations that two threads share, in the order in which they run.
const SHARED: [&str; 3] = ["put of a new key", "get", "get and update, alternately"];

/// An operation of a thread: with a number that no other call has, random numbers, and memory for a value.
type Operation<'a> = dyn Fn(u64, &mut Rng, &mut Vec<u8>) -> Result<()> + Sync + 'a;

/// Measures in this many rounds, and adds rows and facts.
pub(crate) fn add(
    report: &mut Report,
    directory: &Path,
    values: &Records,
    sizes: Sizes,
    rounds: usize,
) -> Result<()> {
    eprintln!("two threads");
    let shared: Vec<[[f64; SHARED.len()]; 2]> = rounds_of(rounds, |index| {
        let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
        threads(directory.path(), values, sizes.records, [2, 1][index])
    })?;
    for (index, name) in SHARED.into_iter().enumerate() {
        let pair = |round: &[[f64; SHARED.len()]; 2]| Pair { ours: round[0][index], theirs: round[1][index] };
        let pairs = shared.iter().map(pair).collect();
        report.row(format!("{name}, two threads"), "one thread", "op/s", pairs, None);
    }

    for (order, key) in [("random", Records::key as fn(u64) -> u64), ("ascending", |number| number)] {
        let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
        let memory = ours::memory(directory.path(), values, sizes.records, key)?;
        report.fact(&format!("memory, {order} keys"), memory);
    }

    eprintln!("bare loop");
    let bound: Result<Vec<f64>> = (0..rounds).map(|_| bare_loop(directory)).collect();
    report.fact("bare loop of a put's stores", format!("{:.0} op/s", median(bound?)));

    let sizes = Sizes { records: sizes.records.min(RECORDS_MAX), ..sizes };
    for bytes in VALUE_BYTES {
        let values = Records::new(bytes);
        compare(
            report,
            directory,
            &values,
            sizes,
            rounds,
            &format!("{bytes} B"),
            [ours::measure, lmdb::measure],
        )?;
    }
    let of_strings = [ours::measure_strings, lmdb::measure_strings];
    compare(report, directory, values, sizes, rounds, "string keys", of_strings)
}

/// Adds the rows of ours and LMDB for one kind of records.
fn compare(
    report: &mut Report,
    directory: &Path,
    values: &Records,
    sizes: Sizes,
    rounds: usize,
    name: &str,
    stores: [crate::Measure; 2],
) -> Result<()> {
    eprintln!("{name}");
    let mut agreed = None;
    let measured: Vec<[Rates; 2]> = rounds_of(rounds, |index| {
        let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
        stores[index](directory.path(), Workload { records: values, sizes, agreed: &mut agreed })
    })?;
    for (index, workload) in NAMES.into_iter().enumerate() {
        let pair =
            |[ours, theirs]: &[Rates; 2]| Pair { ours: ours.rates[index], theirs: theirs.rates[index] };
        let pairs = measured.iter().map(pair).collect();
        report.row(format!("{workload}, {name}"), "LMDB", "op/s", pairs, None);
    }
    Ok(())
}

/// The operations per second of this many threads together, on a new store.
fn threads(directory: &Path, values: &Records, count: u64, threads: u64) -> Result<[f64; SHARED.len()]> {
    let store = ours::create(directory)?;
    let table = store.table::<u64, &[u8]>("records").into_diagnostic()?;
    let per_thread = count / threads;
    let put = |key: u64, value: &mut Vec<u8>| {
        values.value_into(key, value);
        table.insert(key, value).into_diagnostic()
    };
    let get = |key: u64| {
        let is_right = table.get_with(key, |value| values.is_value(key, value)).into_diagnostic()?;
        ensure!(is_right == Some(true), "no value of {key:#x}");
        Ok(())
    };
    let run = |operation: &Operation<'_>| {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let work = |thread: u64| {
                move || {
                    let (mut random, mut value) = (Rng::with_seed(thread), Vec::new());
                    let mut numbers = thread * per_thread..(thread + 1) * per_thread;
                    numbers.try_for_each(|number| operation(number, &mut random, &mut value))
                }
            };
            let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })?;
        Ok::<_, miette::Report>(per_second(threads * per_thread, begin.elapsed()))
    };
    let random_key = |random: &mut Rng| Records::key(random.u64(..threads * per_thread));
    let puts = run(&|number, _, value| put(Records::key(number), value).map(drop))?;
    let gets = run(&|_, random, _| get(random_key(random)))?;
    let mixed = run(&|number, random, value| match number % 2 {
        0 => get(random_key(random)),
        _ => put(random_key(random), value).map(drop),
    })?;
    Ok([puts, gets, mixed])
}

/// The stores, flushes and the fence of a put alone, in a second: 256 B around the cache to the next record, and a word to a random line.
fn bare_loop(directory: &Path) -> Result<f64> {
    const RECORDS: u64 = 128 << 20;
    const LINES: u64 = 32 << 20;
    const COUNT: u64 = 1_000_000;
    let directory = tempfile::tempdir_in(directory).into_diagnostic()?;
    let region =
        RegionOptions::new().create(directory.path().join("bare"), RECORDS + LINES).into_diagnostic()?;
    region.populate_range(0..RECORDS + LINES).into_diagnostic()?;
    let begin = Instant::now();
    for number in 0..COUNT {
        let line = RECORDS + Records::key(number) % (LINES / 64) * 64;
        region.store_nt(number * 256 % RECORDS, &[7; 256]);
        region.store_u64(line, number);
        region.flush(line, 8);
        region.fence().into_diagnostic()?;
    }
    Ok(per_second(COUNT, begin.elapsed()))
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
