//! Redo against undo: the same transactions, their writes kept in DRAM and logged, or made in place behind undo entries.

use crate::transactions::{POOL_BYTES, own};
use miette::{IntoDiagnostic as _, Result};
use pm_alloc::{Heap, HeapOptions};
use pm_bench::{Cli, Goal, Report, Row, Side, processor_time, rounds};
use pm_core::RegionOptions;
use std::path::Path;
use std::time::Duration;

/// Bytes that a transaction may choose from.
const ARRAY_BYTES: u64 = 16 << 20;

/// What a transaction writes: so many ranges of so many bytes, far apart.
const SHAPES: [(u64, usize); 9] =
    [(1, 48), (1, 256), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (1, 16_384), (4, 8), (16, 8)];

/// Measures, and adds rows to `report`: redo's throughput to undo's.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let memory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let path = memory.path().join("crossover.pool");
    eprintln!("redo and undo");
    for (count, bytes) in SHAPES {
        let turns = (if cli.quick { 1 << 22 } else { 1 << 25 }) / (count * bytes as u64).max(256);
        let pairs = rounds(cli.round_count(7, 2), |side| {
            let in_place_from = if side == Side::Ours { usize::MAX } else { 1 };
            let took = time(&path, in_place_from, turns, (count, bytes))?;
            std::fs::remove_file(&path).into_diagnostic()?;
            Ok::<_, miette::Report>(turns as f64 / took.as_secs_f64())
        })?;
        let ranges = if count == 1 { "range" } else { "ranges" };
        report.push(Row::new(
            format!("redo, {count} {ranges} of {bytes} B"),
            "undo",
            "tx/s",
            pairs,
            Goal::None,
        ));
    }
    Ok(())
}

/// How long so many transactions take. The ranges go round in the array.
fn time(path: &Path, in_place_from: usize, turns: u64, (count, bytes): (u64, usize)) -> Result<Duration> {
    let region = RegionOptions::new().populate(true);
    let options = HeapOptions::new().region(region).in_place_from_bytes(in_place_from);
    let heap = Heap::create(path, POOL_BYTES, &options).into_diagnostic()?;
    heap.transaction(|tx| {
        let array = tx.alloc_zeroed::<u8>(ARRAY_BYTES)?;
        tx.set_root("array", array)
    })
    .map_err(own)?;
    let contents = vec![0x5A; bytes];
    // Of whole pages and a line, so that ranges of one transaction share neither, and none crosses the array's end.
    let stride = (bytes as u64).next_multiple_of(4096) + 64;
    let room = ARRAY_BYTES / stride;
    let begin = processor_time();
    for turn in 0..turns {
        heap.transaction(|tx| {
            let array = tx.root::<u8>("array")?.expect("it was set above");
            for range in 0..count {
                tx.write_slice(array.element((turn * count + range) % room * stride), &contents)?;
            }
            Ok(())
        })
        .map_err(own)?;
    }
    Ok(processor_time() - begin)
}
