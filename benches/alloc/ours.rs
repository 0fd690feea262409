//! The heap of `libpmalloc.so` in this process.

use crate::workload::PlanFile;
use miette::{IntoDiagnostic as _, Result};
use pm_alloc::format::BLOCK_HEADER_BYTES;
use pm_alloc::{Heap, HeapOptions, UnloggedHeap};
use pm_bench::plan::Op;
use pm_core::{LineCounting, LineWrites, Pmem, Region};
use std::time::Duration;

/// The quarantine times of freed blocks: none, and the paper's.
pub(crate) const WAITS: [(&str, Duration); 2] =
    [("ours, T = 0", Duration::ZERO), ("ours, T = 100 ms", Duration::from_millis(100))];

/// The line writes of a plan whose blocks are written whole, once. They are counted at the seam by the rule that `wear` applies to the rivals' traces.
pub(crate) fn writes(plan: &PlanFile, wait: Duration) -> Result<LineWrites> {
    let heap = make(LineCounting::new(Region::anonymous(256 << 20).into_diagnostic()?), wait)?;
    let pmem = heap.heap().pool().pmem();
    pmem.reset();
    let contents = [0xA5; 4096];
    replay(&heap, plan, |block, bytes| pmem.store(block, &contents[..bytes as usize]))?;
    Ok(pmem.stored())
}

/// Replays a plan. `fill` gets the offset and the bytes of each new block.
pub(crate) fn replay<P: Pmem>(
    heap: &UnloggedHeap<P>,
    plan: &PlanFile,
    fill: impl Fn(u64, u32),
) -> Result<()> {
    let mut slots = vec![0; plan.plan.slot_count() as usize];
    for op in plan.plan.ops() {
        match *op {
            Op::Alloc { slot, bytes } => {
                let block = heap.alloc(u64::from(bytes), 64).into_diagnostic()?;
                fill(block, bytes);
                slots[slot as usize] = block;
            }
            Op::Free { slot } => heap.free(slots[slot as usize]).into_diagnostic()?,
        }
    }
    Ok(())
}

/// A heap like that of `libpmalloc.so`.
fn make<P: Pmem>(pmem: P, wait: Duration) -> Result<UnloggedHeap<P>> {
    let options = HeapOptions::new().lanes(2).lane_entries(30).chunk_bytes(4 << 20).quarantine(wait);
    Ok(UnloggedHeap::new(Heap::format(pmem, &options).into_diagnostic()?))
}

/// The state of the heap at its largest size, as `alloc_workload heap` prints it for glibc: the requested bytes of live blocks, the bytes from the
/// first chunk to the end of the last block, and the free bytes of these.
pub(crate) fn largest_heap(plan: &PlanFile) -> Result<[u64; 3]> {
    const SAMPLES: usize = 100;
    let heap = make(Region::anonymous(3 << 29).into_diagnostic()?, Duration::ZERO)?;
    let mut slots = vec![(0, 0); plan.plan.slot_count() as usize];
    let ops = plan.plan.ops();
    let (mut live_bytes, mut largest) = (0, [0; 3]);
    for (step, op) in ops.iter().enumerate() {
        match *op {
            Op::Alloc { slot, bytes } => {
                let bytes = u64::from(bytes);
                slots[slot as usize] = (heap.alloc(bytes, 64).into_diagnostic()?, bytes);
                live_bytes += bytes;
            }
            Op::Free { slot } => {
                let (block, bytes) = slots[slot as usize];
                heap.free(block).into_diagnostic()?;
                live_bytes -= bytes;
            }
        }
        if (step + 1) % (ops.len() / SAMPLES).max(1) == 0 {
            let (bytes, free_bytes) = extent_of(&heap)?;
            if bytes > largest[1] {
                largest = [live_bytes, bytes, free_bytes];
            }
        }
    }
    Ok(largest)
}

/// The bytes from the first chunk to the end of the last block, and the free bytes of these.
fn extent_of<P: Pmem>(heap: &UnloggedHeap<P>) -> Result<(u64, u64)> {
    let start = heap.heap().layout().first_payload(0) - BLOCK_HEADER_BYTES;
    let (mut end, mut in_blocks) = (start, 0);
    for block in heap.heap().blocks() {
        let usable_bytes = heap.usable_bytes(block).into_diagnostic()?;
        end = block + usable_bytes;
        in_blocks += usable_bytes + BLOCK_HEADER_BYTES;
    }
    Ok((end - start, end - start - in_blocks))
}
