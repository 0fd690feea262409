//! Random inserts into a store over a protected region: protections that close each page at once, after some inserts, and after some time. After Figs. 8
//! and 9 of NVMalloc (TRIOS 2013).

use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Cli, Pair, Report, median};
use pm_btree::{Store, StoreOptions};
use pm_core::protection::{Method, Protected, Protection, Stray, StrayPolicy, Verdict};
use pm_core::{Pmem as _, Region, RegionOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The batch of the long and of the short setting, as in the paper.
const LONG: Duration = Duration::from_millis(150);
const SHORT: Duration = Duration::from_micros(10);

/// When pages are closed.
#[derive(Clone, Copy, Debug)]
enum Close {
    /// Each window by itself.
    AtOnce,
    /// After this number of inserts.
    After(u64),
    /// By a thread, after this time.
    Within(Duration),
}

impl Close {
    fn name(self) -> String {
        match self {
            Self::AtOnce => "page-table".into(),
            Self::After(count) => format!("closed after {count} inserts"),
            Self::Within(time) => format!("async, {} us", time.as_micros()),
        }
    }

    fn protection(self) -> Protection {
        match self {
            Self::AtOnce => Protection::new(Method::PageTable),
            // The thread never comes.
            Self::After(_) => Protection::new(Method::Async).batch(Duration::from_secs(86_400)),
            Self::Within(time) => Protection::new(Method::Async).batch(time),
        }
    }
}

/// The settings: when pages are closed, and the sizes of windows in KiB. The first of each group has the paper's own window.
const SETTINGS: [(Close, &[usize]); 7] = [
    (Close::AtOnce, &[4, 64]),
    (Close::After(64), &[4, 64]),
    (Close::After(1024), &[4, 64]),
    (Close::Within(SHORT), &[4, 64]),
    (Close::Within(Duration::from_millis(1)), &[4, 64]),
    (Close::Within(Duration::from_millis(10)), &[4, 64]),
    (Close::Within(LONG), &[4, 64, 2048]),
];

/// Measures, and adds the rows whose names contain `only` to `report`.
pub(crate) fn measure(cli: &Cli, only: &str, report: &mut Report) -> Result<()> {
    let count = if cli.quick { 50_000 } else { 1_000_000 };
    report.fact("inserts", count);
    let mut calls = serde_json::Map::new();
    for (value_bytes, goal) in [(256, 1.0 / 1.3), (4096, 1.0 / 1.6)] {
        // The unprotected store is measured before and after each setting: the machine changes its pace.
        let mut before = inserts(None, value_bytes, count)?.0;
        for (close, window_kib) in SETTINGS {
            for kib in window_kib {
                let name = format!("inserts of {value_bytes} B, {}, windows of {kib} KiB", close.name());
                if !name.contains(only) {
                    continue;
                }
                eprintln!("{name}");
                let (rate, change_count) = inserts(Some((close, kib << 10)), value_bytes, count)?;
                let after = inserts(None, value_bytes, count)?.0;
                let pairs = [before, after].map(|theirs| Pair { ours: rate, theirs });
                let has_goal = *kib == 64 && matches!(close, Close::Within(LONG));
                report.row(name.clone(), "none", "inserts/s", pairs.to_vec(), has_goal.then_some(goal));
                calls.insert(name, (change_count as f64 * 1000.0 / count as f64).into());
                before = after;
            }
        }
    }
    report.data("mprotect calls in 1,000 inserts", calls);
    for batch in [SHORT, Duration::from_millis(1), LONG] {
        let delay_us = delay_us(batch, if batch == LONG { 5 } else { 201 })?.round();
        report.fact(&format!("median time until protected, async, {} us", batch.as_micros()), delay_us);
    }
    Ok(())
}

/// A new region in memory, all of whose pages are there.
fn region(len_bytes: u64) -> Result<Region> {
    let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    // The file stays until it is unmapped.
    let region = RegionOptions::new().create(directory.path().join("region"), len_bytes).into_diagnostic()?;
    region.populate(0, len_bytes);
    Ok(region)
}

/// Inserts a second into a new store, and the calls of mprotect.
fn inserts(setting: Option<(Close, usize)>, value_bytes: usize, count: u64) -> Result<(f64, u64)> {
    let pool_bytes = ((64 << 20) + (value_bytes as u64 + 128) * count * 5 / 4).next_multiple_of(2 << 20);
    let (close, protection) = match setting {
        Some((close, window_bytes)) => (close, close.protection().window_bytes(window_bytes)),
        None => (Close::AtOnce, Protection::new(Method::None)),
    };
    let pmem = Arc::new(Protected::new(region(pool_bytes)?, &protection).into_diagnostic()?);
    let store = Store::format(Arc::clone(&pmem), &StoreOptions::new()).into_diagnostic()?;
    let table = store.table::<u64, &[u8]>("records").into_diagnostic()?;
    let (mut random, value) = (fastrand::Rng::with_seed(7), vec![7; value_bytes]);
    let changes_before = pmem.windows().change_count();
    let begin = Instant::now();
    for number in 0..count {
        table.insert(random.u64(..), &value).into_diagnostic()?;
        if let Close::After(batch) = close
            && number % batch == batch - 1
        {
            pmem.windows().settle();
        }
    }
    pmem.windows().settle();
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    Ok((rate, pmem.windows().change_count() - changes_before))
}

/// The median time from the end of a store until its page is closed, in microseconds. Stray stores to the page tell, a fault each.
fn delay_us(batch: Duration, count: usize) -> Result<f64> {
    fn let_through(_: &Stray) -> Verdict {
        Verdict::LetThrough
    }
    let protection = Protection::new(Method::Async).batch(batch).on_stray(StrayPolicy::Ask(let_through));
    let pmem = Protected::new(region(64 << 20)?, &protection).into_diagnostic()?;
    let mut random = fastrand::Rng::with_seed(7);
    let mut delays = Vec::new();
    for _ in 0..count {
        let offset = random.u64(..pmem.len_bytes() / 4096) * 4096;
        let strays = pmem.windows().stray_count();
        pmem.store_u64(offset, 1);
        let closed = Instant::now();
        while pmem.windows().stray_count() == strays {
            pmem.get_ref().store_u64(offset, 2);
        }
        delays.push(closed.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(delays))
}
