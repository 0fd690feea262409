//! Fragmentation of the heap by a million operations, and their time.

use crate::SIZES;
use crate::malloc::Malloc;
use crate::ours;
use crate::workload::{ALLOC_WORKLOAD, PlanFile, figures, nanoseconds};
use miette::{Result, miette};
use pm_bench::{Cli, Report, median, rounds_of};
use serde_json::json;
use std::process::Command;
use xtask::process::output;

/// The ratios of deallocations to allocations, 1/`PARTS` in the paper's notation.
const PARTS: [usize; 3] = [3, 2, 1];

/// Enough for the blocks of the largest plan.
const HEAP_BYTES: u64 = 3 << 29;

/// The state of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heap {
    /// The requested bytes of the live blocks.
    live_bytes: u64,
    /// The bytes from the system, up to the end of the last block.
    bytes: u64,
    /// The bytes of these that are in no block.
    free_bytes: u64,
}

impl Heap {
    /// The part of the heap that was not requested, in per cent: free, in headers, or from rounded sizes.
    fn total(self) -> f64 {
        100.0 * (1.0 - self.live_bytes as f64 / self.bytes as f64)
    }

    /// The free part of the heap, in per cent.
    fn external(self) -> f64 {
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
    let mallocs: Vec<_> = std::iter::once(Malloc::ours()?).chain(Malloc::rivals()?).collect();
    for parts in PARTS {
        eprintln!("fragmentation, 1/{parts}");
        let frees = op_count / (parts + 1);
        let plan = PlanFile::random(op_count - frees, frees, sizes.clone())?;
        let times: Vec<[f64; 4]> = rounds_of(cli.round_count(5, 1), |index| time(&mallocs[index], &plan))?;
        let mut heaps = Vec::new();
        for (index, malloc) in mallocs.iter().enumerate() {
            let heap = if index == 0 { largest_of_ours(&plan)? } else { largest(malloc, &plan)? };
            let nanoseconds = median(times.iter().map(|times| times[index]));
            let (total, external) = (heap.total(), heap.external());
            let name = format!("free:alloc 1/{parts}, {}", malloc.name);
            report.fact(&name, format!("{total:.2} % ({external:.2} %), {nanoseconds:.0} ns each"));
            report.data(
                &name,
                json!({ "total": total, "external": external, "bytes": heap.bytes, "ns": nanoseconds }),
            );
            heaps.push((malloc.name, total));
        }
        let verdicts = heaps[1..].iter().filter(|(name, _)| name.starts_with("glibc"));
        let verdicts = verdicts.map(|(name, theirs)| verdict(heaps[0].1 - theirs, parts, name));
        report.fact(&format!("free:alloc 1/{parts}, the goal"), verdicts.collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

/// Compares a difference in percentage points with the goal: at most 1.1, and below 0 for as many deallocations as allocations.
fn verdict(points: f64, parts: usize, rival: &str) -> String {
    let (is_met, goal) = if parts == 1 { (points < 0.0, "below") } else { (points <= 1.1, "<= +1.10") };
    let met = if is_met { "met" } else { "MISSED" };
    format!("{points:+.2} points against {rival}, {goal} {met}")
}

/// The nanoseconds of processor time of an operation.
fn time(malloc: &Malloc, plan: &PlanFile) -> Result<f64> {
    let mut command = Command::new(ALLOC_WORKLOAD);
    let _heap = malloc.apply(HEAP_BYTES, command.arg("time").arg(plan.path()))?;
    let total = nanoseconds(&mut command)?;
    Ok(total / plan.op_count as f64)
}

/// The state of the heap at its largest size. At the end it may be empty.
fn largest(malloc: &Malloc, plan: &PlanFile) -> Result<Heap> {
    let mut command = Command::new(ALLOC_WORKLOAD);
    let _heap = malloc.apply(HEAP_BYTES, command.arg("heap").arg(plan.path()))?;
    let output = output(&mut command)?;
    let heaps = figures(&output, "heap")?.into_iter();
    let heaps = heaps.map(|[live_bytes, bytes, free_bytes]| Heap { live_bytes, bytes, free_bytes });
    heaps.max_by_key(|heap| heap.bytes).ok_or_else(|| miette!("no state of the heap"))
}

/// The same for ours, which has no C function for it: from the same heap in this process.
fn largest_of_ours(plan: &PlanFile) -> Result<Heap> {
    let [live_bytes, bytes, free_bytes] = ours::largest_heap(plan)?;
    Ok(Heap { live_bytes, bytes, free_bytes })
}
