//! fio on block devices and files.

use miette::Result;
use pm_bench::fio::{self, Access, Job};
use pm_bench::nvm::device::Kind;
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
    let job = Job::new(if kind == Kind::Read { Access::Read } else { Access::Write }, 1);
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
