//! On this machine: pmbd over NBD and nbdkit with its memory plugin, both on a Unix socket, both asked by fio's own NBD
//! client.

use crate::child::Server;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use pm_bench::fio::{self, Job};
use pm_bench::{Cli, Goal, Report, Row, Side, rounds};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use xtask::apt::{self, Need};

const SIZE_BYTES: u64 = 1 << 30;
const DEPTHS: [u32; 2] = [1, 16];

/// Measures, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, pmbd: &Path, report: &mut Report) -> Result<()> {
    apt::ensure(&[Need::new("fio", "fio"), Need::new("nbdkit", "nbdkit")])?;
    let memory = tempfile::tempdir_in("/dev/shm").into_diagnostic().wrap_err("/dev/shm")?;
    let sockets = tempfile::tempdir().into_diagnostic()?;
    let (ours, theirs) = (sockets.path().join("pmbd"), sockets.path().join("nbdkit"));
    let _pmbd = start_pmbd(pmbd, &memory.path().join("disk.pm"), &ours)?;
    let _nbdkit = start_nbdkit(&theirs)?;
    let socket = |side| if side == Side::Ours { &ours } else { &theirs };
    for side in [Side::Ours, Side::Theirs] {
        run_fio(socket(side), fio::fill(SIZE_BYTES))?;
    }

    let runtime = Duration::from_millis(if cli.quick { 500 } else { 1000 });
    let round_count = cli.round_count(9, 3);
    report.fact("nbdkit", version("nbdkit")?);
    report.fact("fio", version("fio")?);
    report.fact("nbd_size_bytes", SIZE_BYTES);
    report.fact("nbd_rounds", round_count);
    for job in Job::at_depths(DEPTHS) {
        eprintln!("NBD, {job}");
        let pairs = rounds(round_count, |side| {
            job.iops(&run_fio(socket(side), job.arguments(SIZE_BYTES, runtime))?)
        })?;
        let goal = Goal::AtLeast(if job.depth == 1 { 1.0 } else { 1.3 });
        report.push(Row::new(format!("NBD {job}"), "nbdkit memory", "io/s", pairs, goal));
    }
    Ok(())
}

fn start_pmbd(pmbd: &Path, disk: &Path, socket: &Path) -> Result<Server> {
    let mut server = Server::start(
        Command::new(pmbd)
            .args(["--json", "serve"])
            .arg(disk)
            .args(["--size", &SIZE_BYTES.to_string(), "--populate", "--transport", "nbd", "--socket"])
            .arg(socket)
            // Its list of running servers is the user's, and this one is none of them.
            .env("PMBD_RUN_DIR", socket.with_file_name("run")),
    )?;
    server.wait_for_line("\"serving\"")?;
    Ok(server)
}

fn start_nbdkit(socket: &Path) -> Result<Server> {
    let size = SIZE_BYTES.to_string();
    let mut server = Server::start(
        Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(socket)
            .args(["memory", &size]),
    )?;
    server.wait_for_path(socket)?;
    Ok(server)
}

fn run_fio(socket: &Path, arguments: Vec<String>) -> Result<String> {
    let output = Command::new("fio")
        .args(["--ioengine=nbd", &format!("--uri=nbd+unix:///?socket={}", socket.display())])
        .args(arguments)
        .output()
        .into_diagnostic()
        .wrap_err("cannot run fio")?;
    if !output.status.success() {
        bail!("fio failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn version(program: &str) -> Result<String> {
    let output = Command::new(program).arg("--version").output().into_diagnostic()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
