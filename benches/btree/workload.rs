//! The workloads, in the order in which each store runs them: lookups and scans of the loaded records, insertions of new ones, removals of old ones.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use miette::{Result, bail, ensure};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The names of the measured workloads.
pub(crate) const NAMES: [&str; 4] = ["get", "scan of 100", "put of a new key", "remove"];

/// The records of a scan.
const SCAN: usize = 100;

/// The scans whose results must be the same for all stores.
const COMPARED_SCANS: u64 = 100;

/// The clock is read once for this many operations.
const STEP: u64 = 16;

/// The operations whose latencies are measured, at most.
const TIMED: u64 = 20_000;

/// A prime number: multiples of it, modulo the number of records, are all different.
const STRIDE: u64 = 2_654_435_761;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The records that are loaded.
    pub(crate) records: u64,
    /// The time of each workload, unless it is through with its records before.
    pub(crate) time: Duration,
}

/// The results of one store, in operations per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) load: f64,
    /// In the order of [`NAMES`].
    pub(crate) rates: [f64; NAMES.len()],
    pub(crate) get_ns: Percentiles,
    pub(crate) put_ns: Percentiles,
}

/// Latencies in nanoseconds: the median, and those that one operation in a hundred and one in a thousand exceed.
pub(crate) type Percentiles = [f64; 3];

/// All workloads.
pub(crate) struct Workload<'a> {
    pub(crate) records: &'a Records,
    pub(crate) sizes: Sizes,
    /// The results of the first scans, once a store has run them.
    pub(crate) agreed: &'a mut Option<Scanned>,
}

impl Workload<'_> {
    /// Runs on an empty store.
    pub(crate) fn run(self, store: &mut dyn OrderedStore) -> Result<Rates> {
        let Self { records, sizes, agreed } = self;
        let count = sizes.records;
        let begin = Instant::now();
        store.load(records, 0..count)?;
        let load = count as f64 / begin.elapsed().as_secs_f64();

        let mut random = fastrand::Rng::with_seed(2);
        let mut value = Vec::new();
        let get = |_| {
            let key = Records::key(random.u64(..count));
            let mut is_right = false;
            store.get(key, &mut |value| is_right = records.is_value(key, value))?;
            ensure!(is_right, "no value of {key:#x}");
            Ok(())
        };
        let (_, gets) = timed(sizes.time, u64::MAX, get)?;

        let mut scanned = Scanned::default();
        let scan = |number| {
            let found = store.scan(Records::key(number % count), SCAN)?;
            ensure!(found.count > 0, "a scan that begins at a record found none");
            if number < COMPARED_SCANS {
                scanned = Scanned { count: scanned.count + found.count, sum: scanned.sum + found.sum };
            }
            Ok(())
        };
        let (scan_count, scans) = timed(sizes.time, u64::MAX, scan)?;
        if scan_count < COMPARED_SCANS {
            bail!("only {scan_count} scans: the time is too short");
        }
        ensure!(*agreed.get_or_insert(scanned) == scanned, "the scans differ from those of the other stores");

        // A quarter of the loaded records, so that the store does not change its size much.
        let change_count = count / 4;
        let new = |number| Records::key(count + number);
        let put = |number| {
            let key = new(number);
            records.value_into(key, &mut value);
            store.put(key, &value)
        };
        let (put_count, puts) = timed(sizes.time, change_count, put)?;

        // Not in the order in which they were loaded.
        let old = |number: u64| Records::key(number.wrapping_mul(STRIDE) % count);
        let (removed_count, removals) = timed(sizes.time, change_count, |number| store.remove(old(number)))?;

        let get_ns = latencies(sizes.time, |_| {
            store
                .get(Records::key(count + random.u64(..put_count)), &mut |value| _ = black_box(value[0]))
                .map(drop)
        })?;
        let newer = |number| Records::key(count + change_count + number);
        let put_ns = latencies(sizes.time, |number| {
            records.value_into(newer(number), &mut value);
            store.put(newer(number), &value)
        })?;

        for (first, last, key, is_there) in [
            (0, put_count, &new as &dyn Fn(u64) -> u64, true),
            (0, removed_count, &old, false),
            (removed_count, count, &old, true),
        ] {
            for key in (first..last).step_by(97).map(key) {
                let mut is_right = true;
                let found = store.get(key, &mut |value| is_right = records.is_value(key, value))?;
                ensure!(found == is_there, "{key:#x}: found {found}, expected {is_there}");
                ensure!(is_right, "{key:#x} has another value");
            }
        }
        Ok(Rates { load, rates: [gets, scans, puts, removals], get_ns, put_ns })
    }
}

/// Runs `operation` with the numbers from zero, until `time` has passed or `count` operations are done. Returns their number, and the operations per
/// second.
fn timed(time: Duration, count: u64, mut operation: impl FnMut(u64) -> Result<()>) -> Result<(u64, f64)> {
    let begin = Instant::now();
    let mut done = 0;
    while done < count {
        operation(done)?;
        done += 1;
        if done.is_multiple_of(STEP) && begin.elapsed() >= time {
            break;
        }
    }
    Ok((done, done as f64 / begin.elapsed().as_secs_f64()))
}

/// The latencies of single operations, with that of reading the clock, some 25 ns.
fn latencies(time: Duration, mut operation: impl FnMut(u64) -> Result<()>) -> Result<Percentiles> {
    let mut latencies = Vec::new();
    timed(time, TIMED, |number| {
        let begin = Instant::now();
        operation(number)?;
        latencies.push(begin.elapsed().as_nanos());
        Ok(())
    })?;
    latencies.sort_unstable();
    Ok([500, 990, 999].map(|part| latencies[latencies.len() * part / 1000] as f64))
}
