//! PMDK: an allocator whose every operation is durable, and transactions.

use crate::SIZES;
use crate::workload::{PlanFile, nanoseconds};
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::{Cli, Report, median, rounds_of};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// `c/pmdk.c`, where it was compiled.
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
    eprintln!("PMDK");
    let times: Vec<[f64; 2]> = rounds_of(cli.round_count(9, 3), |index| {
        let mut command = Command::new(program);
        match index {
            0 => command.arg("alloc").arg(&pool).arg(plan.path()),
            _ => command.arg("tx").arg(&pool).arg(op_count.to_string()),
        };
        Ok::<_, miette::Report>(run(&mut command, &pool)? / op_count as f64)
    })?;
    let names =
        [format!("PMDK, alloc or free, {sizes_name}"), "PMDK, transaction of one 16 B range".to_owned()];
    for (index, name) in names.iter().enumerate() {
        let nanoseconds = median(times.iter().map(|times| times[index]));
        report.fact(name, format!("{nanoseconds:.0} ns"));
        report.data(name, json!({ "ns": nanoseconds }));
    }
    Ok(())
}

/// Nanoseconds of processor time. PMDK is told that this file is persistent memory, which it would not believe of a tmpfs:
/// it then flushes lines instead of calling `msync`.
fn run(command: &mut Command, pool: &Path) -> Result<f64> {
    let nanoseconds = nanoseconds(command.env("PMEM_IS_PMEM_FORCE", "1"))?;
    std::fs::remove_file(pool).into_diagnostic()?;
    Ok(nanoseconds)
}
