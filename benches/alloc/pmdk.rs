//! Transactions against PMDK's: durable allocation and deallocation, and changes of a range.

use crate::transactions::{time_plan, time_ranges, time_transactions, time_unlogged};
use crate::workload::{PlanFile, nanoseconds};
use crate::{SIZES, bound};
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::{Cli, Report, Side, processors, rounds, run_on};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The path of `c/pmdk.c`, compiled.
const PMDK: Option<&str> = option_env!("PM_BENCH_PMDK");

/// Measures, and adds facts to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let Some(program) = PMDK else {
        report.fact("PMDK", "not measured: the feature `pmdk` of pm-bench is off");
        return Ok(());
    };
    let op_count = if cli.quick { 20_000 } else { 200_000 };
    let (sizes_name, sizes) = SIZES[0].clone();
    let plan = PlanFile::random(op_count / 2, op_count / 2, sizes)?;
    let memory = tempfile::tempdir_in("/dev/shm").into_diagnostic().wrap_err("/dev/shm")?;
    let pool = memory.path().join("pmdk.pool");
    let ours = memory.path().join("ours.pool");
    eprintln!("PMDK");
    let anywhere = processors()?;
    run_on(&anywhere[anywhere.len() - 1..])?;
    let theirs = |command: &mut Command| run(command, &pool);
    let alloc = || theirs(Command::new(program).arg("alloc").arg(&pool).arg(plan.path()));
    let change = || theirs(Command::new(program).arg("tx").arg(&pool).arg(op_count.to_string()));
    let mut row =
        |name: String, goal, our: &dyn Fn() -> Result<Duration>, their: &dyn Fn() -> Result<f64>| {
            let [pairs] = rounds(cli.round_count(9, 3), |side| {
                let seconds = match side {
                    Side::Ours => remove(&ours, our()?.as_secs_f64())?,
                    Side::Theirs => their()?,
                };
                Ok([op_count as f64 / seconds])
            })?;
            report.row(name, "PMDK", "op/s", pairs, goal);
            Ok::<_, miette::Report>(())
        };
    let name = |how| format!("alloc or free, {sizes_name}, {how}");
    row(name("with the link to it"), Some(3.0), &|| time_plan(&ours, &plan), &alloc)?;
    row(name("each in a transaction"), None, &|| time_transactions(&ours, &plan), &alloc)?;
    row(name("durable, without a link"), None, &|| time_unlogged(&ours, &plan), &alloc)?;
    let one_range = "transaction of one 16 B range".to_owned();
    row(one_range, Some(2.0), &|| time_ranges(&ours, op_count as u64), &change)?;
    bound::measure(cli, &name("with the link to it"), &plan, memory.path(), report)?;
    run_on(&anywhere)
}

/// The seconds of processor time of a run of PMDK, which is told that the file on a tmpfs is persistent memory, so that it flushes lines instead
/// of calling `msync`. Like ours, it touches every page beforehand.
fn run(command: &mut Command, pool: &Path) -> Result<f64> {
    let nanoseconds =
        nanoseconds(command.env("PMEM_IS_PMEM_FORCE", "1").env("PMEMOBJ_CONF", "prefault.at_create=1;"))?;
    remove(pool, nanoseconds / 1e9)
}

/// Removes the pool of a round, and returns the round's result.
fn remove(pool: &Path, measured: f64) -> Result<f64> {
    std::fs::remove_file(pool).into_diagnostic()?;
    Ok(measured)
}
