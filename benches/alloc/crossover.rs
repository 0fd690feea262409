//! Redo against undo: the same transactions, with writes kept in DRAM and logged, or made in place after undo entries.

use crate::transactions::{POOL_BYTES, own};
use miette::{IntoDiagnostic as _, Result};
use pm_alloc::{Heap, HeapOptions};
use pm_bench::{Cli, Report, Side, processor_time, rounds};
use pm_core::RegionOptions;
use std::path::Path;
use std::time::Duration;

/// The size of the array that transactions write to.
const ARRAY_BYTES: u64 = 16 << 20;

/// The writes of a transaction: the number of ranges, which are far apart, and the bytes of each.
const SHAPES: [(u64, usize); 9] =
    [(1, 48), (1, 256), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (1, 16_384), (4, 8), (16, 8)];

/// Measures, and adds rows to `report`: redo's throughput to undo's.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let memory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let path = memory.path().join("crossover.pool");
    eprintln!("redo and undo");
    for (count, bytes) in SHAPES {
        let turns = (if cli.quick { 1 << 22 } else { 1 << 25 }) / (count * bytes as u64).max(256);
        let [pairs] = rounds(cli.round_count(7, 2), |side| {
            let in_place_from = if side == Side::Ours { usize::MAX } else { 1 };
            let took = time(&path, in_place_from, turns, (count, bytes))?;
            std::fs::remove_file(&path).into_diagnostic()?;
            Ok([turns as f64 / took.as_secs_f64()])
        })?;
        let ranges = if count == 1 { "range" } else { "ranges" };
        report.row(format!("redo, {count} {ranges} of {bytes} B"), "undo", "tx/s", pairs, None);
    }
    Ok(())
}

/// The time of `turns` transactions. Their ranges cycle through the array.
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
    // Whole pages and a line: the ranges of a transaction share no page and no line, and none crosses the array's end.
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
