//! The engine, called directly by one and by two threads.

use crate::memory::Memory;
use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Cli, Report, Side, rounds};
use pm_core::protection::{Method, Protected, Protection, ProtectionError};
use pm_core::{Pmem, Region, RegionOptions};
use pmbd::{
    BlockOp, BufferOptions, Engine, Geometry, SectorSize, Slots, WriteBackMark, WritePolicy, WriteScheme,
    WriteSetup,
};
use std::path::Path;
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 256 << 20;
const START_BYTES: u64 = 2 << 20;
/// Requests between two Flushes of deferred writes: a queue's worth.
const BATCH: u64 = 32;

type Device = Engine<Protected<Region>>;

/// Rows with goals.
const GOALS: [(&str, f64); 6] = [
    ("unmapped, 2 MiB pages: random writes of 256 KiB, one thread", 0.70),
    ("unmapped, 2 MiB pages: sequential writes of 256 KiB, one thread", 0.70),
    ("unmapped, 2 MiB pages: random writes of 4 KiB, one thread", 0.30),
    ("unmapped, 2 MiB pages: sequential writes of 4 KiB, one thread", 0.30),
    ("batched, 4 KiB pages: sequential writes of 4 KiB, one thread", 10.0),
    ("batched, 2 MiB pages: sequential writes of 4 KiB, one thread", 10.0),
];

/// What each thread does.
#[derive(Clone, Copy, Debug)]
struct Load {
    is_write: bool,
    is_sequential: bool,
    kib: u64,
    thread_count: u64,
}

impl Load {
    fn all() -> impl Iterator<Item = Self> {
        [1, 2].into_iter().flat_map(|thread_count| {
            [4, 256].into_iter().flat_map(move |kib| {
                [(true, false), (true, true), (false, false), (false, true)]
                    .into_iter()
                    .map(move |(is_write, is_sequential)| Self { is_write, is_sequential, kib, thread_count })
            })
        })
    }

    fn name(self) -> String {
        let order = if self.is_sequential { "sequential" } else { "random" };
        let what = if self.is_write { "writes" } else { "reads" };
        let threads = if self.thread_count == 1 { "one thread" } else { "two threads" };
        format!("{order} {what} of {} KiB, {threads}", self.kib)
    }
}

/// Measures, and adds the rows whose names contain `only` to `report`.
pub(crate) fn measure(cli: &Cli, only: &str, memories: &[Memory], report: &mut Report) -> Result<()> {
    let round_count = cli.round_count(9, 3);
    let time = Duration::from_millis(if cli.quick { 10 } else { 30 });
    report.fact("engine_rounds", round_count);
    let no_key = no_key()?;
    if let Some(reason) = &no_key {
        report.fact("pkey", format!("not measured: {reason}"));
    }
    for memory in memories {
        let mut compare = |name: &str, ours: &dyn Fn() -> Result<Device>, theirs: (&str, &Device)| {
            let name = |load: Load| format!("{name}, {}: {}", memory.name(), load.name());
            if !Load::all().any(|load| name(load).contains(only)) {
                return Ok(());
            }
            let ours = ours()?;
            for load in Load::all().filter(|load| name(*load).contains(only)) {
                let name = name(load);
                eprintln!("engine, {name}");
                let [pairs] = rounds(round_count, |side| {
                    Ok([rate(if side == Side::Ours { &ours } else { theirs.1 }, load, time)?])
                })?;
                let goal = GOALS.iter().find(|(row, _)| *row == name).map(|(_, goal)| *goal);
                report.row(name, theirs.0, "io/s", pairs, goal);
            }
            Ok::<(), miette::Report>(())
        };
        let plain = device(memory, Method::None, WriteScheme::NonTemporal, None)?;
        for method in Method::ALL.into_iter().filter(|method| *method != Method::Pkey || no_key.is_none()) {
            let ours = || device(memory, method, WriteScheme::NonTemporal, None);
            compare(method.name(), &ours, ("none", &plain))?;
        }
        for (name, scheme) in [("clwb", WriteScheme::WriteBack), ("deferred", WriteScheme::Deferred)] {
            compare(name, &|| device(memory, Method::None, scheme, None), ("movnt", &plain))?;
        }
        drop(plain);
        let page_table = device(memory, Method::PageTable, WriteScheme::NonTemporal, None)?;
        for (name, buffer_count, is_batched) in
            [("buffered", 1, false), ("batched", 1, true), ("16 buffers, batched", 16, true)]
        {
            // 16 MiB in all.
            let buffer_bytes = (16 << 20) / buffer_count;
            let options =
                BufferOptions { buffer_bytes, buffer_count, is_batched, ..BufferOptions::default() };
            let ours = || device(memory, Method::PageTable, WriteScheme::NonTemporal, Some(options));
            compare(name, &ours, ("page-table", &page_table))?;
        }
    }
    Ok(())
}

/// Why this machine has no protection keys.
fn no_key() -> Result<Option<String>> {
    let region = Region::anonymous(START_BYTES).into_diagnostic()?;
    match Protected::new(region, &Protection::new(Method::Pkey)) {
        Err(error @ ProtectionError::NoKey(_)) => Ok(Some(error.to_string())),
        other => other.map(|_| None).into_diagnostic(),
    }
}

fn device(
    memory: &Memory,
    method: Method,
    scheme: WriteScheme,
    buffers: Option<BufferOptions>,
) -> Result<Device> {
    let directory = tempfile::tempdir_in(memory.path()).into_diagnostic()?;
    // The file stays until it is unmapped.
    let path = directory.path().join("region");
    let region = RegionOptions::new().create(path, START_BYTES + DEVICE_BYTES).into_diagnostic()?;
    region.populate(0, START_BYTES + DEVICE_BYTES);
    let protection = Protection::new(method).window_bytes(memory.window_bytes());
    let region = Protected::new(region, &protection).into_diagnostic()?;
    let geometry = Geometry::new(START_BYTES, DEVICE_BYTES, SectorSize::B512).into_diagnostic()?;
    let engine = Engine::new(region, geometry).into_diagnostic()?;
    let buffers = match buffers {
        Some(options) => {
            let path = directory.path().join("slots");
            Some((options, slots(&path, options.slot_count())?))
        }
        None => None,
    };
    let mark = Some(WriteBackMark::at(0));
    let setup = WriteSetup { policy: WritePolicy::from(scheme), mark, buffers, leftover: None };
    engine.with_writes(setup).into_diagnostic()
}

fn slots(path: &Path, slot_count: u64) -> Result<Slots> {
    let len_bytes = Slots::len_bytes(slot_count);
    let region = RegionOptions::new().populate(true).create(path, len_bytes).into_diagnostic()?;
    Slots::create(Box::new(region), 0, slot_count, 7).into_diagnostic()
}

/// Requests a second, over all threads. A device with a write-back cache gets a Flush after every [`BATCH`] writes.
fn rate(engine: &Device, load: Load, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let counts: Result<Vec<u64>> = std::thread::scope(|threads| {
        let run = |thread: u64| threads.spawn(move || requests(engine, load, thread, time));
        let running: Vec<_> = (0..load.thread_count).map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("a thread of a measurement")).collect()
    });
    Ok(counts?.into_iter().sum::<u64>() as f64 / begin.elapsed().as_secs_f64())
}

/// Executes requests for this time, in a part of the device of the thread's own. Returns their number.
fn requests(engine: &Device, load: Load, thread: u64, time: Duration) -> Result<u64> {
    let len_bytes = load.kib << 10;
    let part_bytes = DEVICE_BYTES / load.thread_count;
    let slot_count = part_bytes / len_bytes;
    let mut random = fastrand::Rng::with_seed(thread);
    let mut buffer = vec![7; usize::try_from(len_bytes).into_diagnostic()?];
    let is_deferred = engine.policy().scheme == WriteScheme::Deferred;
    let (begin, mut count) = (Instant::now(), 0);
    while begin.elapsed() < time {
        for _ in 0..BATCH {
            let slot = if load.is_sequential { count % slot_count } else { random.u64(..slot_count) };
            let offset = thread * part_bytes + slot * len_bytes;
            let op = match load.is_write {
                true => BlockOp::Write { data: &buffer, fua: false },
                false => BlockOp::Read { out: &mut buffer },
            };
            engine.execute(offset, op).into_diagnostic()?;
            count += 1;
        }
        if is_deferred && load.is_write {
            engine.execute(0, BlockOp::Flush).into_diagnostic()?;
        }
    }
    Ok(count)
}
