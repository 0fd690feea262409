//! memcached with another malloc: insertions and deletions over one connection.
//!
//! memcached has its own slab allocator, which calls malloc for a mebibyte at a time. The number of calls that malloc receives is counted, and
//! printed above the table.

use crate::human;
use crate::load::Load;
use crate::malloc::Malloc;
use miette::{IntoDiagnostic as _, Result, bail, miette};
use pm_alloc::{Heap, HeapOptions};
use pm_bench::{Cli, Report, Server, Side, rounds};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::{apt, process};

/// `c/malloc_count.c`, compiled.
const MALLOC_COUNT: &str = env!("PM_BENCH_MALLOC_COUNT");

/// The sizes of values: random, or equal.
const VALUES: [(&str, RangeInclusive<u16>); 2] = [("10 B..4 KB", 10..=4096), ("1 KB", 1024..=1024)];

/// More than all items need, so that none is evicted.
const MEMORY_MIB: u32 = 1024;

/// At most 1.10 times glibc's time: 1 / 1.10.
const GOAL: f64 = 0.91;

/// Measures memcached with the malloc of `preload`, or ours, against the same with glibc's, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, preload: Option<&Path>, report: &mut Report) -> Result<()> {
    let ours = match preload {
        // The dynamic loader searches for a bare name in its own directories, and only warns if it finds nothing.
        Some(path) => Malloc::preloaded(path.canonicalize().into_diagnostic()?),
        None => Malloc::ours()?,
    };
    let [glibc, ..] = Malloc::rivals()?;
    let version = process::output(Command::new("memcached").arg("-V"))?;
    report.fact("memcached", version.trim());
    let count = if cli.quick { 100_000 } else { 1_000_000 };
    let round_count = cli.round_count(21, 2);
    for (name, sizes) in VALUES {
        eprintln!("memcached, {name}");
        let load = Load::new(count, sizes);
        report.fact(&format!("memcached {name}, calls of malloc"), count_calls(&load)?);
        let mut heap_state = None;
        let [rates, per_cpu_second] = rounds(round_count, |side| {
            let malloc = if side == Side::Ours { &ours } else { &glibc };
            let mut command = Command::new("memcached");
            let directory = malloc.apply(u64::from(MEMORY_MIB) << 20, &mut command)?;
            let memcached = Memcached::start(command)?;
            let before = memcached.server.processor_time()?;
            let elapsed = load.run(&memcached.socket)?;
            let spent = memcached.server.processor_time()? - before;
            drop(memcached);
            let heap = directory.as_ref().map(|directory| directory.path().join("heap"));
            if let Some(heap) = heap.filter(|heap| heap.exists()) {
                heap_state = Some(check(&heap)?);
            }
            Ok([elapsed, spent].map(|time| load.len() as f64 / time.as_secs_f64()))
        })?;
        if let Some(state) = heap_state {
            report.fact(&format!("memcached {name}, its heap after kill -9"), state);
        }
        let full_name = format!("memcached {name}, {}", ours.library_name());
        report.row(full_name, "glibc", "op/s", rates, Some(GOAL));
        report.row("  per second of the server's CPU", "glibc", "op/s", per_cpu_second, None);
    }
    Ok(())
}

/// Opens and checks the heap of a server that was killed.
fn check(path: &Path) -> Result<String> {
    let heap = Heap::open(path, &HeapOptions::new()).into_diagnostic()?;
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
    /// Starts `command`, memcached without arguments.
    fn start(mut command: Command) -> Result<Self> {
        let directory = tempfile::tempdir().into_diagnostic()?;
        let socket = directory.path().join("memcached");
        command.args(["-p", "0", "-U", "0", "-t", "1", "-m", &MEMORY_MIB.to_string(), "-s"]).arg(&socket);
        if apt::is_root() {
            command.args(["-u", "root"]);
        }
        let mut server = Server::start(&mut command)?;
        // The socket exists before the server's listen(2).
        server.wait_until(|| UnixStream::connect(&socket).is_ok())?;
        Ok(Self { server, socket, _directory: directory })
    }
}

/// Counts, in a separate run, the calls of malloc by a load, from the server's readiness to the end of the load.
fn count_calls(load: &Load) -> Result<String> {
    const WORDS: usize = 4;
    let counts = tempfile::NamedTempFile::new().into_diagnostic()?;
    counts.as_file().set_len(8 * WORDS as u64).into_diagnostic()?;
    let mut command = Command::new("memcached");
    command.env("LD_PRELOAD", MALLOC_COUNT).env("PM_BENCH_MALLOC_COUNT", counts.path());
    let memcached = Memcached::start(command)?;
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
