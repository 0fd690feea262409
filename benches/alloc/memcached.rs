//! memcached with another malloc: insertions and deletions, as fast as one connection brings them.
//!
//! memcached has a slab allocator of its own, which asks malloc for a mebibyte at a time; it would have to be modified, to
//! give every item a malloc of its own. How many calls another malloc gets to see at all is counted, and stands above the
//! table.

use crate::human;
use crate::load::Load;
use crate::malloc::{self, HeapFile};
use miette::{IntoDiagnostic as _, Result, bail, miette};
use pm_alloc::{Heap, HeapOptions};
use pm_bench::{Cli, Goal, Pair, Report, Row, Server, Side, rounds};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::apt;

/// `c/malloc_count.c`, compiled.
const MALLOC_COUNT: &str = env!("PM_BENCH_MALLOC_COUNT");

/// Values: of random sizes, and of one.
const VALUES: [(&str, RangeInclusive<u16>); 2] = [("10 B..4 KB", 10..=4096), ("1 KB", 1024..=1024)];

/// More than all items have together, so that none is thrown away.
const MEMORY_MIB: u32 = 1024;

/// "Within 1.10 of glibc's": 1 / 1.10.
const GOAL: Goal = Goal::AtLeast(0.91);

/// Measures memcached with the malloc of `preload`, or ours, against the same with glibc's, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, preload: Option<&Path>, report: &mut Report) -> Result<()> {
    let preload = match preload {
        // The dynamic loader would look a bare name up elsewhere, and go on without what it does not find.
        Some(path) => path.canonicalize().into_diagnostic()?,
        None => malloc::library()?,
    };
    let preload_name =
        preload.file_name().map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
    let version = crate::workload::output(Command::new("memcached").arg("-V"))?;
    report.fact("memcached", version.trim());
    let count = if cli.quick { 100_000 } else { 1_000_000 };
    let round_count = cli.round_count(21, 2);
    for (name, sizes) in VALUES {
        eprintln!("memcached, {name}");
        let load = Load::new(count, sizes);
        report.fact(&format!("memcached {name}, calls of malloc"), count_calls(&load)?);
        let mut economy = [Vec::new(), Vec::new()];
        let mut heaps = Vec::new();
        let pairs = rounds(round_count, |side| {
            let heap = HeapFile::new()?;
            let memcached = Memcached::start(|command| {
                if side == Side::Ours {
                    heap.preload(&preload, u64::from(MEMORY_MIB) << 20, command);
                }
            })?;
            let before = memcached.server.processor_time()?;
            let elapsed = load.run(&memcached.socket)?;
            let spent = memcached.server.processor_time()? - before;
            economy[usize::from(side == Side::Theirs)].push(load.len() as f64 / spent.as_secs_f64());
            drop(memcached);
            if side == Side::Ours && heap.path().exists() {
                heaps.push(look_at(&heap)?);
            }
            Ok::<_, miette::Report>(load.len() as f64 / elapsed.as_secs_f64())
        })?;
        if let Some(heap) = heaps.last() {
            report.fact(&format!("memcached {name}, its heap after kill -9"), heap.as_str());
        }
        let row = |name, pairs, goal| Row::new(name, "glibc", "op/s", pairs, goal);
        report.push(row(format!("memcached {name}, {preload_name}"), pairs, GOAL));
        let [ours, theirs] = economy;
        let pairs = ours.into_iter().zip(theirs).map(|(ours, theirs)| Pair { ours, theirs }).collect();
        report.push(row("  per second of the server's CPU".to_owned(), pairs, Goal::None));
    }
    Ok(())
}

/// What a server that was killed has left: its heap opens, and every header is looked at.
fn look_at(file: &HeapFile) -> Result<String> {
    let heap = Heap::open(file.path(), &HeapOptions::new()).into_diagnostic()?;
    let report = heap.check();
    if !report.is_clean() {
        bail!("the heap that memcached left is corrupted: {report:?}");
    }
    let blocks = heap.blocks().len();
    Ok(format!("checked clean, {blocks} blocks"))
}

/// A server with one thread for its clients.
struct Memcached {
    server: Server,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Memcached {
    fn start(prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let directory = tempfile::tempdir().into_diagnostic()?;
        let socket = directory.path().join("memcached");
        let mut command = Command::new("memcached");
        command.args(["-p", "0", "-U", "0", "-t", "1", "-m", &MEMORY_MIB.to_string(), "-s"]).arg(&socket);
        if apt::is_root() {
            command.args(["-u", "root"]);
        }
        prepare(&mut command);
        let mut server = Server::start(&mut command)?;
        server.wait_for_listener(&socket)?;
        Ok(Self { server, socket, _directory: directory })
    }
}

/// What malloc gets to see of a load: counted in a run of its own, from when the server is ready to when all is done.
fn count_calls(load: &Load) -> Result<String> {
    const WORDS: usize = 4;
    let counts = tempfile::NamedTempFile::new().into_diagnostic()?;
    counts.as_file().set_len(8 * WORDS as u64).into_diagnostic()?;
    let memcached = Memcached::start(|command| {
        command.env("LD_PRELOAD", MALLOC_COUNT).env("PM_BENCH_MALLOC_COUNT", counts.path());
    })?;
    let read = || -> Result<[u64; WORDS]> {
        let bytes = std::fs::read(counts.path()).into_diagnostic()?;
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        words.try_into().map_err(|_| miette!("not {WORDS} counts"))
    };
    let before = read()?;
    load.run(&memcached.socket)?;
    let after = read()?;
    let [allocations, deallocations, bytes, small] =
        std::array::from_fn(|index| after[index] - before[index]);
    Ok(format!(
        "{allocations} allocations of {} bytes, {small} of them below 64 KiB, and {deallocations} deallocations, in {} operations",
        human(bytes),
        human(load.len() as u64),
    ))
}
