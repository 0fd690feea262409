//! The number of writes to each line of the heap: of the rivals from traces by Valgrind, of ours from the seam.

use crate::malloc::Malloc;
use crate::workload::{ALLOC_WORKLOAD, PlanFile};
use crate::{SIZES, human, ours, transactions};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail, miette};
use pm_bench::lackey::{self, Ranges, Writes};
use pm_bench::{Cli, Pair, Plot, Report, Series};
use pm_core::LineWrites;
use serde_json::json;
use std::io::BufReader;
use std::process::{Command, Stdio};
use std::thread;

/// The number of concurrent traces, of about a minute each.
const AT_A_TIME: usize = 2;

/// The number of points of a curve, about one for each pixel of the chart's width.
const COLUMNS: usize = 640;

/// The least ratios of glibc's line writes to ours, for each of [`SIZES`].
const GOALS: [f64; 2] = [1.3, 1.5];

/// Measures, and adds facts, rows and charts to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let half = if cli.quick { 5_000 } else { 50_000 };
    report.fact("wear", format!("{half} allocations, each block written once, and {half} deallocations"));
    let mallocs = Malloc::rivals()?;
    let plans = SIZES.map(|(_, sizes)| PlanFile::random(half, half, sizes));
    let plans = plans.into_iter().collect::<Result<Vec<_>>>()?;
    let runs: Vec<_> =
        plans.iter().flat_map(|plan| mallocs.iter().map(move |malloc| (malloc, plan))).collect();
    let mut traced = Vec::new();
    for runs in runs.chunks(AT_A_TIME) {
        let names: Vec<_> = runs.iter().map(|(malloc, _)| malloc.name).collect();
        eprintln!("tracing {}", names.join(" and "));
        traced.extend(trace_together(runs)?);
    }
    for (index, traced) in traced.chunks(mallocs.len()).enumerate() {
        let sizes = SIZES[index].0;
        let mut ours = Vec::new();
        for (name, wait) in ours::WAITS {
            ours.push((name, Writes { heap: ours::writes(&plans[index], wait)?, ..Writes::default() }));
        }
        let ours = ours.iter().map(|(name, writes)| (*name, writes));
        let worn: Vec<_> = ours.chain(mallocs.iter().map(|malloc| malloc.name).zip(traced)).collect();
        publish(report, sizes, &worn);
        compare(report, sizes, &worn, plans[index].op_count, GOALS[index]);
        let [stored, sent] = transactions::writes(&plans[index])?;
        let both = format!("stored {}; sent to the medium {}", summary(&stored), summary(&sent));
        report.fact(&format!("line writes, {sizes}, our transactions, with their log"), both);
    }
    Ok(())
}

/// Traces all runs concurrently.
fn trace_together(runs: &[(&Malloc, &PlanFile)]) -> Result<Vec<Writes>> {
    thread::scope(|scope| {
        let threads: Vec<_> = runs.iter().map(|(malloc, plan)| scope.spawn(|| trace(malloc, plan))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| miette!("a tracing thread panicked"))?)
            .collect()
    })
}

/// Runs the plan in Valgrind. The program's standard output goes to a file, which is complete when the measured phase begins.
fn trace(malloc: &Malloc, plan: &PlanFile) -> Result<Writes> {
    let ranges = tempfile::NamedTempFile::new().into_diagnostic()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes", ALLOC_WORKLOAD, "trace"]).arg(plan.path());
    let _heap = malloc.apply(0, &mut command)?;
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(ranges.reopen().into_diagnostic()?);
    let mut valgrind = command.spawn().into_diagnostic().wrap_err("cannot run valgrind")?;
    let trace = valgrind.stderr.take().ok_or_else(|| miette!("valgrind has no standard error"))?;
    let trace = BufReader::with_capacity(1 << 20, trace);
    let parse = || Ranges::parse(&std::fs::read_to_string(ranges.path()).into_diagnostic()?);
    let writes = lackey::import(trace, parse);
    let status = valgrind.wait().into_diagnostic()?;
    let writes = writes.wrap_err_with(|| format!("{} in valgrind, which ended: {status}", malloc.name))?;
    if !status.success() {
        bail!("{} in valgrind: {status}", malloc.name);
    }
    Ok(writes)
}

/// The facts and the two charts of one range of sizes.
fn publish(report: &mut Report, sizes: &str, worn: &[(&str, &Writes)]) {
    for (name, writes) in worn {
        let Writes { heap, statics } = writes;
        let mut fact = format!("heap {}", summary(heap));
        if statics.total_writes() > 0 {
            fact += &format!("; its variables {}", summary(statics));
        }
        let name = format!("line writes, {sizes}, {name}");
        report.fact(&name, fact);
        report.data(&name, data(heap));
    }
    let short = sizes.replace([' ', '.'], "");
    let curves = |points: fn(&LineWrites) -> Vec<(f64, f64)>| {
        let curve = |&(name, writes): &(&str, &Writes)| Series {
            name: name.to_owned(),
            points: points(&writes.heap),
        };
        worn.iter().map(curve).collect::<Vec<_>>()
    };
    let cdf = Plot {
        title: format!("{sizes}: lines with at most so many writes"),
        labels: ["writes of a line", "share of the lines"].map(str::to_owned),
        logarithmic: [true, false],
        series: curves(steps),
    };
    let lines = Plot {
        title: format!("{sizes}: writes to each line"),
        labels: ["line of the heap", "writes"].map(str::to_owned),
        logarithmic: [false, true],
        series: curves(in_order).into_iter().map(|series| series.highest_of(COLUMNS)).collect(),
    };
    report.chart(format!("cdf-{short}"), &cdf);
    report.chart(format!("lines-{short}"), &lines);
}

/// Adds a row for each of ours against each rival: operations per line write, which are counts and not times. The goal applies to all of glibc's
/// writes, as in the paper: the heads of its free lists, which are variables, would be on the medium with its heap. Ours are in DRAM, and rebuilt.
fn compare(report: &mut Report, sizes: &str, worn: &[(&str, &Writes)], op_count: usize, goal: f64) {
    let (ours, rivals) = worn.split_at(ours::WAITS.len());
    for (name, writes) in ours {
        for (rival, their_writes) in rivals {
            let Writes { heap, statics } = their_writes;
            let their_counts =
                [("", heap.total_writes() + statics.total_writes()), (", heap alone", heap.total_writes())];
            for (what, their_count) in their_counts {
                let per_write = |count: u64| op_count as f64 / count as f64;
                let pair =
                    Pair { ours: per_write(writes.heap.total_writes()), theirs: per_write(their_count) };
                let is_goal = rival.starts_with("glibc") && what.is_empty();
                let row = format!("wear {sizes}, {name}{what}");
                report.row(row, *rival, "op/w", vec![pair], is_goal.then_some(goal));
            }
        }
    }
}

fn summary(writes: &LineWrites) -> String {
    let [total, lines, most] = [writes.total_writes(), writes.line_count(), writes.max_writes()].map(human);
    format!("{total} to {lines} lines, {most} to one, Gini {:.2}", gini(writes))
}

/// The Gini coefficient of the writes to the written lines: 0 if all have as many, near 1 if one has all.
fn gini(writes: &LineWrites) -> f64 {
    let sorted = writes.sorted_writes();
    let count = sorted.len() as f64;
    let weighted: f64 =
        sorted.iter().enumerate().map(|(rank, writes)| (rank + 1) as f64 * *writes as f64).sum();
    let total = writes.total_writes() as f64;
    if total == 0.0 { 0.0 } else { 2.0 * weighted / (count * total) - (count + 1.0) / count }
}

fn data(writes: &LineWrites) -> serde_json::Value {
    let cdf: Vec<_> = writes.cdf().iter().map(|point| json!([point.writes, point.fraction])).collect();
    json!({
        "total": writes.total_writes(),
        "lines": writes.line_count(),
        "most": writes.max_writes(),
        "gini": gini(writes),
        "cdf": cdf,
    })
}

/// The distribution as a step function.
fn steps(writes: &LineWrites) -> Vec<(f64, f64)> {
    let mut below = 0.0;
    let step = |point: pm_core::CdfPoint| {
        let at = point.writes as f64;
        [(at, std::mem::replace(&mut below, point.fraction)), (at, point.fraction)]
    };
    writes.cdf().into_iter().flat_map(step).collect()
}

/// The writes of each written line, in the order of addresses.
fn in_order(writes: &LineWrites) -> Vec<(f64, f64)> {
    writes
        .by_line()
        .into_iter()
        .enumerate()
        .map(|(index, (_, writes))| (index as f64, writes as f64))
        .collect()
}
