//! Ours: the plans on a direct heap, in this process.

use crate::workload::PlanFile;
use miette::{IntoDiagnostic as _, Result};
use pm_alloc::format::BLOCK_HEADER_BYTES;
use pm_alloc::{DirectHeap, Heap, HeapOptions};
use pm_bench::plan::Op;
use pm_core::{Histogram, LineWrites, Pmem, Region};
use std::time::Duration;

/// How long blocks wait before they are handed out again: not at all, and as long as the paper's.
pub(crate) const WAITS: [(&str, Duration); 2] =
    [("ours, T = 0", Duration::ZERO), ("ours, T = 100 ms", Duration::from_millis(100))];

/// A heap in anonymous memory, as `libpmalloc.so` makes them.
fn make<P: Pmem>(pmem: P, wait: Duration) -> Result<DirectHeap<P>> {
    let options = HeapOptions::new().lanes(2).lane_entries(30).chunk_bytes(chunk_bytes()).reuse_after(wait);
    Ok(DirectHeap::new(Heap::format(pmem, &options).into_diagnostic()?))
}

fn chunk_bytes() -> u64 { std::env::var("CHUNK").map_or(4 << 20, |v| v.parse::<u64>().unwrap() << 10) }

/// As `alloc_workload trace` does: the writes to each line when every block is written once, whole.
pub(crate) fn writes(plan: &PlanFile, wait: Duration) -> Result<LineWrites> {
    let heap = make(Histogram::new(Region::anonymous(1 << 30).into_diagnostic()?), wait)?;
    let pmem = heap.heap().pool().pmem();
    pmem.reset();
    let contents = vec![0xa5; 4096];
    replay(plan, &heap, |block, bytes| pmem.store(block, &contents[..bytes as usize]), |_| ())?;
    Ok(pmem.stored())
}

/// Replays a plan: `write` gets each block with the bytes that were asked for, `after` the number of each step.
pub(crate) fn replay<P: Pmem>(
    plan: &PlanFile,
    heap: &DirectHeap<P>,
    write: impl Fn(u64, u32),
    mut after: impl FnMut(usize),
) -> Result<()> {
    let mut slots = vec![0; plan.plan.slot_count() as usize];
    for (step, op) in plan.plan.ops().iter().enumerate() {
        match *op {
            Op::Alloc { slot, bytes } => {
                let block = heap.alloc(u64::from(bytes), 64).into_diagnostic()?;
                write(block, bytes);
                slots[slot as usize] = block;
            }
            Op::Free { slot } => heap.free(slots[slot as usize]).into_diagnostic()?,
        }
        after(step);
    }
    Ok(())
}

/// The state of the heap when it was largest, as `alloc_workload heap` says it of glibc's: the live bytes that were asked for, the
/// bytes from the region's start to the end of the last block, headers of heap and pool included, and those of them that are free.
pub(crate) fn largest_heap(plan: &PlanFile) -> Result<[u64; 3]> {
    const SAMPLES: usize = 100;
    let heap = make(Region::anonymous(3 << 29).into_diagnostic()?, Duration::ZERO)?;
    let ops = plan.plan.ops();
    let mut sizes = vec![0; plan.plan.slot_count() as usize];
    let (mut live_bytes, mut largest) = (0, [0; 3]);
    replay(plan, &heap, |_, _| (), |step| {
        match ops[step] {
            Op::Alloc { slot, bytes } => {
                sizes[slot as usize] = u64::from(bytes);
                live_bytes += u64::from(bytes);
            }
            Op::Free { slot } => live_bytes -= sizes[slot as usize],
        }
        if (step + 1) % (ops.len() / SAMPLES).max(1) == 0 {
            let (end, free_bytes) = extent_of(&heap);
            if end > largest[1] {
                largest = [live_bytes, end, free_bytes];
            }
        }
    })?;
    Ok(largest)
}

/// Where the last block ends, and what is free before.
fn extent_of<P: Pmem>(heap: &DirectHeap<P>) -> (u64, u64) {
    let blocks = heap.heap().blocks();
    let start = heap.heap().layout().first_payload(0);
    let whole = |block: &u64| heap.usable_bytes(*block).expect("a listed block") + BLOCK_HEADER_BYTES;
    let end = blocks.last().map_or(start, |last| last + whole(last));
    (end, end - start - blocks.iter().map(whole).sum::<u64>())
}
