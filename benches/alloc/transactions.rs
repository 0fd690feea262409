//! Our transactions, and the durable unlogged heap: the work of `c/pmdk.c`, and its line writes.

use crate::ours;
use crate::workload::PlanFile;
use miette::{IntoDiagnostic as _, Result};
use pm_alloc::{Heap, HeapOptions, TxError, UnloggedHeap, View};
use pm_bench::plan::Op;
use pm_bench::processor_time;
use pm_core::{LineCounting, LineWrites, Link, Pmem, Region, RegionOptions};
use std::path::Path;
use std::time::Duration;

/// The size of PMDK's pool.
pub(crate) const POOL_BYTES: u64 = 256 << 20;

/// The number of lines that transactions of one range choose from, as in `c/pmdk.c`.
const TX_LINES: u64 = 1 << 16;

/// The words of a line.
const WORDS: u64 = 8;

/// Creates the pool, replays a plan on it, and returns the time of the replay. One call allocates a block and links it from its slot of an array,
/// and one unlinks and frees it, like PMDK's `pmemobj_alloc` and `pmemobj_free`.
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

/// Like [`time_plan`], with each operation in its own transaction, which finds the array first.
pub(crate) fn time_transactions(path: &Path, plan: &PlanFile) -> Result<Duration> {
    let heap = create(path)?;
    make_slots(&heap, plan, 1)?;
    let begin = processor_time();
    replay(&heap, plan, |_, _| ())?;
    Ok(processor_time() - begin)
}

/// Like [`time_plan`], on an unlogged heap: an allocation or deallocation is durable when it returns, but there are no links to the blocks.
pub(crate) fn time_unlogged(path: &Path, plan: &PlanFile) -> Result<Duration> {
    let heap = UnloggedHeap::new(create(path)?).durable(true);
    let begin = processor_time();
    ours::replay(&heap, plan, |_, _| ())?;
    Ok(processor_time() - begin)
}

/// Creates the pool, and returns the time of `count` transactions that overwrite 16 bytes each.
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
            // The factor is odd, so that all lines are used in turn.
            let line = turn * 40_503 % TX_LINES;
            tx.write_slice(lines.element(line * WORDS), &[turn, !turn])
        })
        .map_err(own)?;
    }
    Ok(processor_time() - begin)
}

/// The line writes that a plan with whole writes of its blocks stores, and those sent to the medium, the log's included.
pub(crate) fn writes(plan: &PlanFile) -> Result<[LineWrites; 2]> {
    let region = LineCounting::new(Region::anonymous(POOL_BYTES).into_diagnostic()?);
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

/// Allocates an array with a slot for each live block of each thread.
pub(crate) fn make_slots<P: Pmem>(heap: &Heap<P>, plan: &PlanFile, threads: u64) -> Result<()> {
    let slot_count = threads * u64::from(plan.plan.slot_count());
    heap.transaction(|tx| {
        let slots = tx.alloc_zeroed::<Link<'_, u8>>(slot_count)?;
        tx.set_root("slots", slots)
    })
    .map_err(own)
}

/// Replays a plan in transactions. `fill` gets the offset and the bytes of each new block before its link is written; its flushes are fenced by the commit.
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

/// Creates a pool with all pages allocated, like PMDK's.
pub(crate) fn create(path: &Path) -> Result<Heap> {
    let options = HeapOptions::new().region(RegionOptions::new().populate(true));
    Heap::create(path, POOL_BYTES, &options).into_diagnostic()
}

/// Converts an error and fixes the error type of a transaction's closure.
pub(crate) fn own(error: TxError) -> miette::Report {
    miette::Report::from_err(error)
}
