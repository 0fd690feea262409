//! fio on block devices and files.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_bench::fio::{self, Access, Job};
use pm_bench::nvm::device::{Counts, Kind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use xtask::process;

/// Of what is accessed. The contents are random, so that zram does not compress them.
const DATA_BYTES: u64 = 256 << 20;

/// The number of runs of each cell, and the time of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    pub(crate) count: usize,
    pub(crate) time: Duration,
}

/// Writes every byte that is accessed later, so that reads find data and writes find blocks.
pub(crate) fn fill(target: &Path) -> Result<()> {
    run(target, &["--ioengine=psync", "--refill_buffers"], fio::fill(DATA_BYTES)).map(drop)
}

/// The median latency of one access of 4 KiB after the other, in microseconds. A flush is one after a write.
pub(crate) fn latency_us(target: &Path, kind: Kind, time: Duration) -> Result<f64> {
    latency_us_of(target, kind, 4, time)
}

/// The same of accesses of another length.
pub(crate) fn latency_us_of(target: &Path, kind: Kind, kib: u32, time: Duration) -> Result<f64> {
    let access = if kind == Kind::Read { Access::Read } else { Access::Write };
    let job = Job { kib, ..Job::new(access, 1) };
    let mut options = vec!["--ioengine=psync", "--refill_buffers"];
    if kind == Kind::Flush {
        options.push("--fsync=1");
    }
    let output = run(target, &options, job.arguments(DATA_BYTES, time))?;
    let latency = if kind == Kind::Flush { job.flush_latency(&output) } else { job.latency(&output) };
    Ok(latency?.median_us)
}

/// The bandwidth of this number of accesses of 4 KiB in flight, in megabytes (10^6) a second.
pub(crate) fn mb_s(target: &Path, access: Access, depth: u32, time: Duration) -> Result<f64> {
    let job = Job::new(access, depth);
    let output = run(target, &["--ioengine=libaio"], job.arguments(DATA_BYTES, time))?;
    Ok(job.done(&output)?.iops * f64::from(job.kib << 10) / 1e6)
}

fn run(target: &Path, options: &[&str], job: Vec<String>) -> Result<String> {
    let name = format!("--filename={}", target.display());
    process::output(Command::new("fio").args([&name, "--direct=1"]).args(options).args(job))
}

/// The requests so far: Documentation/block/stat.rst of Linux.
pub(crate) fn counts(device: &Path) -> Result<Counts> {
    let name = device.file_name().unwrap_or_default();
    let path = Path::new("/sys/block").join(name).join("stat");
    let text =
        std::fs::read_to_string(&path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    let fields: Vec<f64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let [reads, _, sectors_read, _, writes, _, sectors_written, ..] = fields[..] else {
        return Err(miette!("{} is {text:?}", path.display()));
    };
    // Older kernels do not count flushes.
    let flushes = fields.get(15).copied().unwrap_or(0.0);
    let (read_kib, written_kib) = (sectors_read / 2.0, sectors_written / 2.0);
    Ok(Counts { reads, read_kib, writes, written_kib, flushes, busy_s: 0.0 })
}
