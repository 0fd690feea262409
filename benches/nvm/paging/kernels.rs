//! The programs of Fig. 10: kernels of the NAS Parallel Benchmarks, and DGEMM of OpenBLAS.
//!
//! Each is a process of its own, which can be in a control group: `ready` when its data is made; then for each line `MILLISECONDS` of its input a line
//! `SECONDS STEPS FAULTS`; at the end of the input `exact`, if the whole computation has the right result.

use super::group;
use crate::programs::compile;
use miette::{IntoDiagnostic as _, Result, miette};
use pm_bench::Conversation;
use pm_bench::npb::{Kernel, cg, is};
use rustix::thread::disable_transparent_huge_pages;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use xtask::apt::{self, Need};

const DGEMM: &str = include_str!("../../c/dgemm.c");
const NEEDS: [Need; 2] = [Need::new("lib/libopenblas.so", "libopenblas-dev"), Need::new("cc", "gcc")];
/// Three matrices of 18 MiB.
const ROWS: &str = "1536";

/// The programs of C, compiled.
pub(super) struct Programs {
    dgemm: PathBuf,
    _directory: TempDir,
}

/// The memory that a program may have, so that its data exceeds it as in the paper.
pub(super) fn memory_bytes(program: &str) -> Result<u64> {
    let mib = match program {
        // 66 MiB; 35 GB of 8 GB in the paper.
        "is" => 16,
        // 23 MiB; 18 GB of 8 GB in the paper.
        "cg" => 11,
        // 54 MiB; 21 GB of 8 GB in the paper.
        "dgemm" => 21,
        _ => return Err(miette!("there is no program {program}")),
    };
    Ok(mib << 20)
}

impl Programs {
    pub(super) fn compile() -> Result<Self> {
        apt::ensure(&NEEDS)?;
        let (dgemm, directory) = compile("dgemm", DGEMM, "-lopenblas")?;
        Ok(Self { dgemm, _directory: directory })
    }

    /// Starts one, in a control group or not.
    pub(super) fn start(&self, program: &str, group: Option<&Path>) -> Result<Conversation> {
        let mut command;
        if program == "dgemm" {
            command = Command::new(&self.dgemm);
            command.arg(ROWS).args(group.map(group::processes));
        } else {
            command = Command::new(std::env::current_exe().into_diagnostic()?);
            command.args(["--serve", program]).args(group);
        }
        Conversation::start(&mut command)
    }
}

/// Is one of the kernels.
pub(crate) fn serve(program: &str, group: Option<&Path>) -> Result<ExitCode> {
    // Pages of 4 KiB are paged, as in the paper.
    disable_transparent_huge_pages(true).into_diagnostic()?;
    match program {
        "is" => run(is::Is::new(is::A), group),
        "cg" => run(cg::Cg::new(cg::A), group),
        _ => Err(miette!("there is no program {program}")),
    }
}

fn run(made: impl Kernel + Clone, group: Option<&Path>) -> Result<ExitCode> {
    let mut kernel = made;
    if let Some(group) = group {
        group::join(group)?;
        // What was made before is not of the group's memory. The copy is.
        kernel = kernel.clone();
    }
    println!("ready");
    for line in std::io::stdin().lines() {
        let time = Duration::from_millis(line.into_diagnostic()?.parse().into_diagnostic()?);
        let (faults, begin) = (super::thrash::major_faults()?, Instant::now());
        let mut steps = 0;
        while steps == 0 || begin.elapsed() < time {
            kernel.step().into_diagnostic()?;
            steps += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!("{seconds} {steps} {}", super::thrash::major_faults()? - faults);
    }
    kernel.finish().into_diagnostic()?;
    println!("exact");
    Ok(ExitCode::SUCCESS)
}
