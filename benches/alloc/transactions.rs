//! Our transactions, and the unlogged heap made durable: the work that `c/pmdk.c` does, and what it writes.

use crate::workload::PlanFile;
use miette::{IntoDiagnostic as _, Result};
use pm_alloc::{Heap, HeapOptions, TxError, UnloggedHeap, View};
use pm_bench::plan::Op;
use pm_bench::processor_time;
use pm_core::{Histogram, LineWrites, Link, Pmem, Region, RegionOptions};
use std::path::Path;
use std::time::Duration;

/// As long as PMDK's.
pub(crate) const POOL_BYTES: u64 = 256 << 20;

/// The lines that transactions of one range change, as many as in `c/pmdk.c`.
const TX_LINES: u64 = 1 << 16;

/// Words of a line.
const WORDS: u64 = 8;

/// Creates the pool, replays a plan on it, and says how long that took. Each block is linked from its slot of an array by the call
/// that allocates it, and leaves the slot by the one that frees it, as with PMDK's `pmemobj_alloc` and `pmemobj_free`.
pub(crate) fn time_plan(path: &Path, plan: &PlanFile) -> Result<Duration> {
    let heap = create(path)?;
    make_slots(&heap, plan, 1)?;
    heap.view(|view| {
        let slots = view.root::<Link<'_, u8>>("slots").into_diagnostic()?.expect("it was set above");
        let begin = processor_time();
        run(view, slots, plan)?;
        Ok(processor_time() - begin)
    })
}

/// Replays a plan on these slots.
pub(crate) fn run<'p, P: Pmem>(
    view: &View<'p, P>,
    slots: Link<'p, Link<'p, u8>>,
    plan: &PlanFile,
) -> Result<()> {
    for op in plan.plan.ops() {
        match *op {
            Op::Alloc { slot, bytes } => {
                let slot = slots.element(u64::from(slot));
                view.alloc_uninit_and_link(slot, u64::from(bytes)).map_err(own)?;
            }
            Op::Free { slot } => view.unlink_and_free(slots.element(u64::from(slot))).map_err(own)?,
        }
    }
    Ok(())
}

/// As [`time_plan`], each operation in a transaction of its own, which finds the array first.
pub(crate) fn time_transactions(path: &Path, plan: &PlanFile) -> Result<Duration> {
    let heap = create(path)?;
    make_slots(&heap, plan, 1)?;
    let begin = processor_time();
    replay(&heap, plan, |_, _| ())?;
    Ok(processor_time() - begin)
}

/// As [`time_plan`], on an unlogged heap: each block is durably allocated when its operation returns, and durably free likewise,
/// but what leads to it is the program's to make durable, by itself.
pub(crate) fn time_unlogged(path: &Path, plan: &PlanFile) -> Result<Duration> {
    let heap = UnloggedHeap::new(create(path)?).durable(true);
    let mut slots = vec![0; plan.plan.slot_count() as usize];
    let begin = processor_time();
    for op in plan.plan.ops() {
        match *op {
            Op::Alloc { slot, bytes } => {
                slots[slot as usize] = heap.alloc(u64::from(bytes), 64).into_diagnostic()?;
            }
            Op::Free { slot } => heap.free(slots[slot as usize]).into_diagnostic()?,
        }
    }
    Ok(processor_time() - begin)
}

/// Creates the pool, and says how long `count` transactions take that overwrite 16 bytes each.
pub(crate) fn time_ranges(path: &Path, count: u64) -> Result<Duration> {
    let heap = create(path)?;
    heap.transaction(|tx| {
        let lines = tx.alloc_zeroed::<u64>(TX_LINES * WORDS)?;
        tx.set_root("lines", lines)
    })
    .map_err(own)?;
    let begin = processor_time();
    for turn in 0..count {
        heap.transaction(|tx| {
            let lines = tx.root::<u64>("lines")?.expect("it was set above");
            // Some line: multiplied by an odd number and cut, all of them in turn.
            let line = turn * 40_503 % TX_LINES;
            tx.write_slice(lines.element(line * WORDS), &[turn, !turn])
        })
        .map_err(own)?;
    }
    Ok(processor_time() - begin)
}

/// The lines stored to, and sent to the medium, by a plan whose blocks are written whole: the log's among them.
pub(crate) fn writes(plan: &PlanFile) -> Result<[LineWrites; 2]> {
    let region = Histogram::new(Region::anonymous(POOL_BYTES).into_diagnostic()?);
    let heap = Heap::format(region, &HeapOptions::new()).into_diagnostic()?;
    let pmem = heap.pool().pmem();
    make_slots(&heap, plan, 1)?;
    pmem.reset();
    let contents = [0xA5; 4096];
    replay(&heap, plan, |offset, bytes| {
        pmem.store(offset, &contents[..bytes as usize]);
        pmem.flush(offset, u64::from(bytes));
    })?;
    Ok([pmem.stored(), pmem.sent()])
}

/// An array with a slot for each block that lives at a time, for each of so many threads.
pub(crate) fn make_slots<P: Pmem>(heap: &Heap<P>, plan: &PlanFile, threads: u64) -> Result<()> {
    let slot_count = threads * u64::from(plan.plan.slot_count());
    heap.transaction(|tx| {
        let slots = tx.alloc_zeroed::<Link<'_, u8>>(slot_count)?;
        tx.set_root("slots", slots)
    })
    .map_err(own)
}

/// `fill` gets each new block before it is published: its offset and its bytes. What it flushes is durable with the commit.
fn replay<P: Pmem>(heap: &Heap<P>, plan: &PlanFile, mut fill: impl FnMut(u64, u32)) -> Result<()> {
    for op in plan.plan.ops() {
        heap.transaction(|tx| {
            let slots = tx.root::<Link<'_, u8>>("slots")?.expect("it was set above");
            match *op {
                Op::Alloc { slot, bytes } => {
                    let block = tx.alloc_uninit::<u8>(u64::from(bytes))?;
                    fill(block.offset(), bytes);
                    tx.write(slots.element(u64::from(slot)), &block)
                }
                Op::Free { slot } => {
                    let slot = slots.element(u64::from(slot));
                    let block = tx.read(slot)?;
                    tx.write(slot, &Link::NULL)?;
                    tx.free(block)
                }
            }
        })
        .map_err(own)?;
    }
    Ok(())
}

/// A pool whose pages are all there, as PMDK's are: their first touch is no matter of allocators.
pub(crate) fn create(path: &Path) -> Result<Heap> {
    let options = HeapOptions::new().region(RegionOptions::new().populate(true));
    Heap::create(path, POOL_BYTES, &options).into_diagnostic()
}

pub(crate) fn own(error: TxError) -> miette::Report {
    miette::Report::from_err(error)
}
