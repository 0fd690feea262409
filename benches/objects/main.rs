//! Objects: loads against the bare seam and pread(2), opens by name against a store's `get`, and durable stores against a heap's transactions; both
//! also against SQLite, and loads against foyer. By one thread.

mod foyer;
mod sqlite;
mod tiers;

use clap::Parser;
use miette::{IntoDiagnostic as _, Result};
use pm_alloc::{Heap, HeapOptions, TxError};
use pm_bench::{Cli, Pair, Report, rounds_of};
use pm_btree::{Store, StoreOptions};
use pm_core::{Pmem as _, Region, RegionOptions};
use pm_objects::{Contents, Object, Objects, ObjectsOptions};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// pm-objects against the seam, pread, pm-btree and pm-alloc.
#[derive(Debug, Parser)]
#[command(name = "objects", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Measure only a part.
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Single calls.
    Calls,
    /// Loads from three tiers, of which two are emulated, against the best places that do not change.
    Tiers,
}

/// The contents of each object: words, of which a load copies eight and a store six.
type Contained = [u64; 32];
type Loaded = [u64; 8];
type Stored = [u64; 6];

/// The calls, the rival, and how fast ours are to be, as a part of the rival's rate.
const CALLS: [(&str, &str, f64); 9] = [
    ("load 64 B, hot", "the seam", 0.3),
    ("load 64 B at random", "the seam", 0.5),
    ("load 64 B at random", "pread", 1.0),
    ("load 64 B at random", "foyer", 1.0),
    ("load 64 B at random", "SQLite", 1.0),
    ("open by name", "get of a store", 0.67),
    ("store 48 B, durable", "transaction", 0.77),
    ("store 48 B, durable", "SQLite", 1.0),
    ("create 256 B", "insert in a store", 0.3),
];

type Rates = [f64; CALLS.len()];

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let mut report = Report::new("objects");
    let includes = |part| options.only.is_none_or(|only| only == part);
    if includes(Part::Calls) {
        calls(&options.cli, &mut report)?;
    }
    if includes(Part::Tiers) {
        tiers::measure(&options.cli, &mut report)?;
    }
    options.cli.finish(&report)
}

fn calls(cli: &Cli, report: &mut Report) -> Result<()> {
    let count = if cli.quick { 50_000 } else { 1_000_000 };
    report.fact("objects of 256 B", count);
    let measured: Vec<[Rates; 2]> = rounds_of(cli.round_count(5, 2), |index| {
        let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
        if index == 0 { ours(directory.path(), count) } else { theirs(directory.path(), count) }
    })?;
    for (call, (name, rival, goal)) in CALLS.into_iter().enumerate() {
        let pair = |[ours, theirs]: &[Rates; 2]| Pair { ours: ours[call], theirs: theirs[call] };
        report.row(name, rival, "calls/s", measured.iter().map(pair).collect(), Some(goal));
    }
    Ok(())
}

/// The calls a second of `count` calls.
fn rate(count: u64, mut call: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    (0..count).try_for_each(&mut call)?;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// A number below `count`, the same for both sides.
fn random(number: u64, count: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xd134_2543_de82_ef95) % count
}

fn name(number: u64) -> String {
    format!("object {number:08}")
}

/// A device's pages are there; those of tmpfs would be added by a fault at the first access.
fn populated() -> RegionOptions {
    RegionOptions::new().populate(true)
}

fn pool_bytes(count: u64) -> u64 {
    (count * 768 + (64 << 20)).next_multiple_of(2 << 20)
}

fn ours(directory: &Path, count: u64) -> Result<Rates> {
    let options = ObjectsOptions::new().region(populated());
    let objects =
        Objects::create_pool(directory.join("pool.pmo"), pool_bytes(count), &options).into_diagnostic()?;
    let created = rate(count, |number| {
        let contents: Contained = [number; 32];
        objects.create(&name(number), Contents::Slice(&contents)).map(drop).into_diagnostic()
    })?;
    let handles = (0..count).map(|number| objects.open::<u64>(&name(number))).collect::<Result<Vec<_>, _>>();
    let handles: Vec<Object<u64>> = handles.into_diagnostic()?;
    let load = |object: &Object<u64>| -> Result<()> {
        let mut loaded: Loaded = [0; 8];
        object.read(0, &mut loaded).into_diagnostic()?;
        black_box(loaded);
        Ok(())
    };
    // Places are found at the first load.
    handles.iter().try_for_each(load)?;
    let hot = rate(4 * count, |_| load(black_box(&handles[0])))?;
    let at_random =
        rate(count, |number| load(&handles[usize::try_from(random(number, count)).into_diagnostic()?]))?;
    drop(handles);
    let opened = rate(count, |number| {
        black_box(objects.open::<u64>(&name(random(number, count))).into_diagnostic()?.len());
        Ok(())
    })?;
    let stored = objects.create("stored", Contents::Value(&[0_u64; 6])).into_diagnostic()?;
    let stores = rate(count, |number| {
        let value: Stored = [number; 6];
        stored.store(&value).into_diagnostic()
    })?;
    Ok([hot, at_random, at_random, at_random, at_random, opened, stores, stores, created])
}

fn theirs(directory: &Path, count: u64) -> Result<Rates> {
    let region = populated().create(directory.join("region"), pool_bytes(count)).into_diagnostic()?;
    let load = |region: &Region, number: u64| {
        let mut loaded = [0; size_of::<Loaded>()];
        region.load(number * size_of::<Contained>() as u64, &mut loaded);
        black_box(loaded);
        Ok(())
    };
    (0..count).try_for_each(|number| load(&region, number))?;
    let hot = rate(4 * count, |_| load(black_box(&region), 0))?;
    let at_random = rate(count, |number| load(&region, random(number, count)))?;
    drop(region);
    let file = File::open(directory.join("region")).into_diagnostic()?;
    let preads = rate(count, |number| {
        let mut loaded = [0; size_of::<Loaded>()];
        file.read_exact_at(&mut loaded, random(number, count) * size_of::<Contained>() as u64)
            .into_diagnostic()?;
        black_box(loaded);
        Ok(())
    })?;
    drop(file);
    std::fs::remove_file(directory.join("region")).into_diagnostic()?;
    let options = StoreOptions::new().heap(HeapOptions::new().region(populated()));
    let store = Store::create(directory.join("store.pm"), pool_bytes(count), &options).into_diagnostic()?;
    let table = store.table::<&str, &[u8]>("objects").into_diagnostic()?;
    let inserted = rate(count, |number| {
        let contents = [number.to_le_bytes()[0]; size_of::<Contained>()];
        table.insert(&name(number), &contents).map(drop).into_diagnostic()
    })?;
    let gets = rate(count, |number| {
        black_box(table.get(&name(random(number, count))).into_diagnostic()?.is_some());
        Ok(())
    })?;
    drop((table, store));
    let heap = Heap::create(directory.join("heap.pm"), 64 << 20, &HeapOptions::new().region(populated()));
    let heap = heap.into_diagnostic()?;
    let offset =
        heap.transaction(|tx| Ok::<_, TxError>(tx.alloc(&[0_u64; 6])?.offset())).into_diagnostic()?;
    let transactions = rate(count, |number| {
        let value: Stored = [number; 6];
        let stored = heap.transaction(|tx| tx.write(tx.link_at::<Stored>(offset)?, &value));
        stored.into_diagnostic()
    })?;
    drop(heap);
    let (cached, sqlite) = (foyer::loads(count)?, sqlite::measure(directory, count)?);
    Ok([hot, at_random, preads, cached, sqlite.loads, gets, transactions, sqlite.stores, inserted])
}
