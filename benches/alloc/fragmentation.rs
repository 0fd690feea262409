//! What a million operations leave of the heap, and how long they take.

use crate::SIZES;
use crate::malloc::Malloc;
use crate::workload::{ALLOC_WORKLOAD, PlanFile, figures, nanoseconds, output};
use miette::{Result, miette};
use pm_bench::{Cli, Report, median, rounds_of};
use serde_json::json;
use std::process::Command;

/// Deallocations to one allocation, as the paper writes them: 1/`PARTS`.
const PARTS: [usize; 3] = [3, 2, 1];

/// The state of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heap {
    /// What the live blocks were asked to have.
    live_bytes: u64,
    /// From the system, up to the end of the last block.
    bytes: u64,
    /// Of these, what no block has.
    free_bytes: u64,
}

impl Heap {
    /// What of the heap no one asked for, in per cent: free, in headers, or beyond what was asked.
    pub(crate) fn total(self) -> f64 {
        100.0 * (1.0 - self.live_bytes as f64 / self.bytes as f64)
    }

    /// What of the heap is free, in per cent.
    pub(crate) fn external(self) -> f64 {
        100.0 * self.free_bytes as f64 / self.bytes as f64
    }
}

/// Measures, and adds facts to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let op_count = if cli.quick { 100_000 } else { 1_000_000 };
    let (sizes_name, sizes) = SIZES[0].clone();
    report.fact(
        "fragmentation",
        format!("{op_count} operations, {sizes_name}; total (external) at the largest heap"),
    );
    let mallocs = Malloc::all()?;
    for parts in PARTS {
        eprintln!("fragmentation, 1/{parts}");
        let frees = op_count / (parts + 1);
        let plan = PlanFile::random(op_count - frees, frees, sizes.clone())?;
        let times: Vec<[f64; 3]> = rounds_of(cli.round_count(5, 1), |index| time(&mallocs[index], &plan))?;
        for (index, malloc) in mallocs.iter().enumerate() {
            let heap = largest(malloc, &plan)?;
            let nanoseconds = median(times.iter().map(|times| times[index]));
            let (total, external) = (heap.total(), heap.external());
            let name = format!("free:alloc 1/{parts}, {}", malloc.name);
            report.fact(&name, format!("{total:.2} % ({external:.2} %), {nanoseconds:.0} ns each"));
            report.data(&name, json!({ "total": total, "external": external, "ns": nanoseconds }));
        }
    }
    Ok(())
}

/// Nanoseconds of processor time an operation.
fn time(malloc: &Malloc, plan: &PlanFile) -> Result<f64> {
    let mut command = Command::new(ALLOC_WORKLOAD);
    let total = nanoseconds(malloc.apply(command.arg("time").arg(plan.path())))?;
    Ok(total / plan.op_count as f64)
}

/// The heap when it was largest. At the end it may be empty, and the end of a random walk says little.
pub(crate) fn largest(malloc: &Malloc, plan: &PlanFile) -> Result<Heap> {
    let mut command = Command::new(ALLOC_WORKLOAD);
    let output = output(malloc.apply(command.arg("heap").arg(plan.path())))?;
    let heaps = figures(&output, "heap")?.into_iter();
    let heaps = heaps.map(|[live_bytes, bytes, free_bytes]| Heap { live_bytes, bytes, free_bytes });
    heaps.max_by_key(|heap| heap.bytes).ok_or_else(|| miette!("no state of the heap"))
}
