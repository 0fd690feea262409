//! How often each line of the heap is written, by what Valgrind sees of the program; of ours, by the seam.

use crate::malloc::Malloc;
use crate::workload::{ALLOC_WORKLOAD, PlanFile};
use crate::{SIZES, human, ours, transactions};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail, miette};
use pm_bench::lackey::{self, LackeyError, Ranges, Writes};
use pm_bench::{Cli, Goal, Pair, Plot, Report, Row, Series};
use pm_core::LineWrites;
use serde_json::json;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// Valgrind writes each line of a trace by itself, which takes a minute: as many at a time as there are processors to spare.
const AT_A_TIME: usize = 2;

/// As many points as a picture has columns.
const COLUMNS: usize = 640;

/// How many times as many line writes as ours the goals want of glibc, for each of [`SIZES`].
const GOALS: [f64; 2] = [1.3, 1.5];

/// Measures, and adds facts, rows and pictures to `report`.
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

/// Traces each at the same time as the others.
fn trace_together(runs: &[(&Malloc, &PlanFile)]) -> Result<Vec<Writes>> {
    thread::scope(|scope| {
        let threads: Vec<_> = runs.iter().map(|(malloc, plan)| scope.spawn(|| trace(malloc, plan))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| miette!("a tracing thread panicked"))?)
            .collect()
    })
}

/// Runs the plan in Valgrind. The program's standard output goes into a file: it is there when the trace says that the
/// measured phase begins.
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
    let writes = lackey::import(trace, || read_ranges(ranges.path()));
    let status = valgrind.wait().into_diagnostic()?;
    let writes = writes
        .into_diagnostic()
        .wrap_err_with(|| format!("{} in valgrind, which ended: {status}", malloc.name))?;
    if !status.success() {
        bail!("{} in valgrind: {status}", malloc.name);
    }
    Ok(writes)
}

fn read_ranges(path: &Path) -> Result<Ranges, LackeyError> {
    Ranges::parse(&std::io::read_to_string(File::open(path)?)?)
}

/// The facts and the two pictures of one range of sizes.
fn publish(report: &mut Report, sizes: &str, worn: &[(&str, &Writes)]) {
    for (name, writes) in worn {
        let Writes { heap, statics } = writes;
        let of_variables = || format!("; its variables {}", summary(statics));
        let variables = if statics.total() > 0 { of_variables() } else { String::new() };
        let fact = format!("heap {}{variables}", summary(heap));
        report.fact(&format!("line writes, {sizes}, {name}"), fact);
        report.data(&format!("line writes, {sizes}, {name}"), data(heap));
    }
    let short = sizes.replace([' ', '.'], "");
    let mut cdf = Plot::new(
        format!("{sizes}: lines with at most so many writes"),
        "writes of a line",
        "share of the lines",
    );
    let mut lines = Plot::new(format!("{sizes}: writes to each line"), "line of the heap", "writes");
    for &(name, writes) in worn {
        cdf.push(Series { name: name.to_owned(), points: steps(&writes.heap) });
        lines.push(Series { name: name.to_owned(), points: in_order(&writes.heap) }.highest_of(COLUMNS));
    }
    report.picture(format!("cdf-{short}"), &cdf.logarithmic(true, false));
    report.picture(format!("lines-{short}"), &lines.logarithmic(false, true));
}

/// Rows for each of ours against each rival: operations for each line write, which are counts and not times. The goal is about all
/// that glibc writes, as in the paper, which recorded every store: of its lists of free blocks, those in its own variables are
/// part of its heap as those in free blocks are, and would lie on the medium with it. Ours are in DRAM, and rebuilt.
fn compare(report: &mut Report, sizes: &str, worn: &[(&str, &Writes)], op_count: usize, goal: f64) {
    let (ours, rivals) = worn.split_at(ours::WAITS.len());
    for (name, writes) in ours {
        for (rival, their_writes) in rivals {
            let Writes { heap, statics } = their_writes;
            let their_counts = [("", heap.total() + statics.total()), (", heap alone", heap.total())];
            for (what, their_count) in their_counts {
                let per_write = |count: u64| op_count as f64 / count as f64;
                let pair = Pair { ours: per_write(writes.heap.total()), theirs: per_write(their_count) };
                let is_goal = rival.starts_with("glibc") && what.is_empty();
                let goal = if is_goal { Goal::AtLeast(goal) } else { Goal::None };
                report.push(Row::new(
                    format!("wear {sizes}, {name}{what}"),
                    *rival,
                    "op/w",
                    vec![pair],
                    goal,
                ));
            }
        }
    }
}

fn summary(writes: &LineWrites) -> String {
    let [total, lines, most] = [writes.total(), writes.line_count(), writes.most()].map(human);
    format!("{total} to {lines} lines, {most} to one, Gini {:.2}", gini(writes))
}

/// How unevenly the writes are spread over the lines that were written: 0 if all have as many, and towards 1 if one has them
/// all.
fn gini(writes: &LineWrites) -> f64 {
    let sorted = writes.sorted();
    let count = sorted.len() as f64;
    let weighted: f64 =
        sorted.iter().enumerate().map(|(rank, writes)| (rank + 1) as f64 * *writes as f64).sum();
    let total = writes.total() as f64;
    if total == 0.0 { 0.0 } else { 2.0 * weighted / (count * total) - (count + 1.0) / count }
}

fn data(writes: &LineWrites) -> serde_json::Value {
    let cdf: Vec<_> = writes.cdf().iter().map(|point| json!([point.writes, point.fraction])).collect();
    json!({
        "total": writes.total(),
        "lines": writes.line_count(),
        "most": writes.most(),
        "gini": gini(writes),
        "cdf": cdf,
    })
}

/// The distribution as a curve: level between two points.
fn steps(writes: &LineWrites) -> Vec<(f64, f64)> {
    let mut below = 0.0;
    let step = |point: pm_core::CdfPoint| {
        let at = point.writes as f64;
        [(at, std::mem::replace(&mut below, point.fraction)), (at, point.fraction)]
    };
    writes.cdf().into_iter().flat_map(step).collect()
}

/// The writes of each written line, lines numbered in the order of their addresses.
fn in_order(writes: &LineWrites) -> Vec<(f64, f64)> {
    writes
        .by_line()
        .into_iter()
        .enumerate()
        .map(|(index, (_, writes))| (index as f64, writes as f64))
        .collect()
}
