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
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 256 << 20;
const START_BYTES: u64 = 2 << 20;
/// Requests between two Flushes of deferred writes: a queue's worth.
const BATCH: u64 = 32;

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

/// Measures, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, memories: &[Memory], report: &mut Report) -> Result<()> {
    let round_count = cli.round_count(9, 3);
    let time = Duration::from_millis(if cli.quick { 10 } else { 30 });
    report.fact("engine_rounds", round_count);
    for memory in memories {
        let plain = engine(memory, Method::None, WriteScheme::NonTemporal, None)?;
        for method in Method::ALL {
            if let (Method::Pkey, Some(reason)) = (method, no_key()?) {
                report.fact("pkey", format!("not measured: {reason}"));
                continue;
            }
            let protected = engine(memory, method, WriteScheme::NonTemporal, None)?;
            eprintln!("engine, {method}, {}", memory.name());
            for load in Load::all() {
                let [pairs] = rounds(round_count, |side| {
                    let engine = if side == Side::Ours { &protected } else { &plain };
                    Ok([rate(engine, load, time)?])
                })?;
                let goal = match (method, load.is_write, load.kib, load.thread_count) {
                    (Method::Unmapped, true, 256, 1) if memory.has_huge_pages => Some(0.70),
                    (Method::Unmapped, true, 4, 1) if memory.has_huge_pages => Some(0.30),
                    _ => None,
                };
                let name = format!("{method}, {}: {}", memory.name(), load.name());
                report.row(name, "none", "io/s", pairs, goal);
            }
        }
        let page_table = engine(memory, Method::PageTable, WriteScheme::NonTemporal, None)?;
        for (name, buffer_count, is_batched) in
            [("buffered", 1, false), ("batched", 1, true), ("16 buffers, batched", 16, true)]
        {
            // 16 MiB in all.
            let buffer_bytes = (16 << 20) / buffer_count;
            let options =
                BufferOptions { buffer_bytes, buffer_count, is_batched, ..BufferOptions::default() };
            let buffered = engine(memory, Method::PageTable, WriteScheme::NonTemporal, Some(options))?;
            eprintln!("engine, {name}, {}", memory.name());
            for load in Load::all().filter(|load| load.is_write) {
                let [pairs] = rounds(round_count, |side| {
                    let engine = if side == Side::Ours { &buffered } else { &page_table };
                    Ok([rate(engine, load, time)?])
                })?;
                let has_goal =
                    name == "batched" && load.is_sequential && load.kib == 4 && load.thread_count == 1;
                let goal = has_goal.then_some(10.0);
                report.row(
                    format!("{name}, {}: {}", memory.name(), load.name()),
                    "page-table",
                    "io/s",
                    pairs,
                    goal,
                );
            }
        }
        for (name, scheme) in [("clwb", WriteScheme::WriteBack), ("deferred", WriteScheme::Deferred)] {
            let other = engine(memory, Method::None, scheme, None)?;
            eprintln!("engine, {name}, {}", memory.name());
            for load in Load::all() {
                let [pairs] = rounds(round_count, |side| {
                    let engine = if side == Side::Ours { &other } else { &plain };
                    Ok([rate(engine, load, time)?])
                })?;
                report.row(
                    format!("{name}, {}: {}", memory.name(), load.name()),
                    "movnt",
                    "io/s",
                    pairs,
                    None,
                );
            }
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

fn engine(
    memory: &Memory,
    method: Method,
    scheme: WriteScheme,
    buffers: Option<BufferOptions>,
) -> Result<Engine<Protected<Region>>> {
    let directory = tempfile::tempdir_in(memory.path()).into_diagnostic()?;
    // The file stays until it is unmapped.
    let path = directory.path().join("region");
    let region = RegionOptions::new().create(path, START_BYTES + DEVICE_BYTES).into_diagnostic()?;
    region.populate(0, START_BYTES + DEVICE_BYTES);
    let protection = Protection::new(method).huge_windows(memory.has_huge_pages);
    let region = Protected::new(region, &protection).into_diagnostic()?;
    let geometry = Geometry::new(START_BYTES, DEVICE_BYTES, SectorSize::B512).into_diagnostic()?;
    let engine = Engine::new(region, geometry).into_diagnostic()?;
    let buffers = match buffers {
        Some(options) => {
            let path = directory.path().join("slots");
            Some((options, Slots::create_file(&path, options.slot_count()).into_diagnostic()?))
        }
        None => None,
    };
    let mark = Some(WriteBackMark::at(0));
    let setup = WriteSetup { policy: WritePolicy::from(scheme), mark, buffers, leftover: None };
    engine.with_writes(setup).into_diagnostic()
}

/// Requests a second, over all threads. A device with a write-back cache gets a Flush after every [`BATCH`] writes.
fn rate(engine: &Engine<Protected<Region>>, load: Load, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let counts: Result<Vec<u64>> = std::thread::scope(|threads| {
        let run = |thread: u64| threads.spawn(move || requests(engine, load, thread, time));
        let running: Vec<_> = (0..load.thread_count).map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("a thread of a measurement")).collect()
    });
    Ok(counts?.into_iter().sum::<u64>() as f64 / begin.elapsed().as_secs_f64())
}

/// Executes requests for this time, in a part of the device of the thread's own. Returns their number.
fn requests(engine: &Engine<Protected<Region>>, load: Load, thread: u64, time: Duration) -> Result<u64> {
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
