//! On this machine: pmbd over NBD against nbdkit with its memory plugin, each on a Unix socket, with fio's NBD client.

use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::fio::{self, Job};
use pm_bench::{Cli, Report, Server, Side, rounds};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use xtask::apt::{self, Need};
use xtask::process;

const SIZE_BYTES: u64 = 1 << 30;
const DEPTHS: [u32; 2] = [1, 16];

/// Measures, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, pmbd: &Path, report: &mut Report) -> Result<()> {
    apt::ensure(&[Need::new("fio", "fio"), Need::new("nbdkit", "nbdkit")])?;
    let memory = tempfile::tempdir_in("/dev/shm").into_diagnostic().wrap_err("/dev/shm")?;
    let sockets = tempfile::tempdir().into_diagnostic()?;
    let (ours, theirs) = (sockets.path().join("pmbd"), sockets.path().join("nbdkit"));
    let pmbd = Target { server: start_pmbd(pmbd, &memory.path().join("disk.pm"), &ours)?, socket: ours };
    let nbdkit = Target { server: start_nbdkit(&theirs)?, socket: theirs };
    for target in [&pmbd, &nbdkit] {
        target.fio(fio::fill(SIZE_BYTES))?;
    }

    let runtime = Duration::from_millis(if cli.quick { 500 } else { 1000 });
    let round_count = cli.round_count(9, 3);
    report.fact("nbdkit", version("nbdkit")?);
    report.fact("fio", version("fio")?);
    report.fact("nbd_size_bytes", SIZE_BYTES);
    report.fact("nbd_rounds", round_count);
    for job in Job::at_depths(DEPTHS) {
        eprintln!("NBD, {job}");
        let [rates, per_cpu_second] = rounds(round_count, |side| {
            let target = if side == Side::Ours { &pmbd } else { &nbdkit };
            let begin = target.server.processor_time()?;
            let done = job.done(&target.fio(job.arguments(SIZE_BYTES, runtime))?)?;
            let spent = target.server.processor_time()? - begin;
            Ok([done.iops, done.count / spent.as_secs_f64()])
        })?;
        let goal = if job.depth == 1 { 1.0 } else { 1.3 };
        report.row(format!("NBD {job}"), "nbdkit memory", "io/s", rates, Some(goal));
        report.row("  per second of the server's CPU", "nbdkit memory", "io/s", per_cpu_second, None);
    }
    Ok(())
}

/// A server and its socket.
struct Target {
    server: Server,
    socket: PathBuf,
}

impl Target {
    /// Runs fio and returns its output.
    fn fio(&self, arguments: Vec<String>) -> Result<String> {
        let uri = format!("--uri=nbd+unix:///?socket={}", self.socket.display());
        process::output(Command::new("fio").args(["--ioengine=nbd", &uri]).args(arguments))
    }
}

fn start_pmbd(pmbd: &Path, disk: &Path, socket: &Path) -> Result<Server> {
    let mut server = Server::start(
        Command::new(pmbd)
            .args(["--json", "serve"])
            .arg(disk)
            .args(["--size", &SIZE_BYTES.to_string(), "--populate", "--transport", "nbd", "--socket"])
            .arg(socket)
            // Keeps this server out of the user's list of running servers.
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
    server.wait_until(|| socket.exists())?;
    Ok(server)
}

fn version(program: &str) -> Result<String> {
    Ok(process::output(Command::new(program).arg("--version"))?.trim().to_owned())
}
