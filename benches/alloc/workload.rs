//! Plans in files, and the C programs that replay them.

use miette::{IntoDiagnostic as _, Result, bail, miette};
use pm_bench::plan::Plan;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use tempfile::NamedTempFile;
use xtask::process::output;

/// The seed of every plan.
const SEED: u64 = 0x4E56_4D61_6C6C_6F63;

/// `c/alloc_workload.c`, compiled.
pub(crate) const ALLOC_WORKLOAD: &str = env!("PM_BENCH_ALLOC_WORKLOAD");

/// A plan in a file for C programs.
#[derive(Debug)]
pub(crate) struct PlanFile {
    file: NamedTempFile,
    pub(crate) op_count: usize,
    /// The plan, to be replayed in this process.
    pub(crate) plan: Plan,
}

impl PlanFile {
    /// A random plan.
    pub(crate) fn random(allocs: usize, frees: usize, sizes: std::ops::RangeInclusive<u32>) -> Result<Self> {
        let mut file = NamedTempFile::new().into_diagnostic()?;
        let plan = Plan::random(allocs, frees, sizes, SEED);
        file.write_all(&plan.to_bytes()).into_diagnostic()?;
        Ok(Self { file, op_count: allocs + frees, plan })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

/// The numbers of each line that begins with `name`.
pub(crate) fn figures<const N: usize>(output: &str, name: &str) -> Result<Vec<[u64; N]>> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let parse = |line: &str| line.split(' ').map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
    let figures: Option<Vec<_>> = lines.map(|line| parse(line)?.try_into().ok()).collect();
    figures.filter(|figures| !figures.is_empty()).ok_or_else(|| miette!("no figures of {name} in {output:?}"))
}

/// The nanoseconds that a program reports.
pub(crate) fn nanoseconds(command: &mut Command) -> Result<f64> {
    let [[nanoseconds]] = figures::<1>(&output(command)?, "ns")?[..] else { bail!("more than one time") };
    Ok(nanoseconds as f64)
}
