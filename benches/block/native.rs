//! On this machine: pmbd over NBD and nbdkit with its memory plugin, both on a Unix socket, both asked by
//! fio's own NBD client.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use pm_bench::fio::{self, Job};
use pm_bench::{Cli, Goal, Pair, Report, Row, Server, Side, rounds};
use std::path::{Path, PathBuf};
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
    let pmbd = Asked { server: start_pmbd(pmbd, &memory.path().join("disk.pm"), &ours)?, socket: ours };
    let nbdkit = Asked { server: start_nbdkit(&theirs)?, socket: theirs };
    for asked in [&pmbd, &nbdkit] {
        asked.fio(fio::fill(SIZE_BYTES))?;
    }

    let runtime = Duration::from_millis(if cli.quick { 500 } else { 1000 });
    let round_count = cli.round_count(9, 3);
    report.fact("nbdkit", version("nbdkit")?);
    report.fact("fio", version("fio")?);
    report.fact("nbd_size_bytes", SIZE_BYTES);
    report.fact("nbd_rounds", round_count);
    for job in Job::at_depths(DEPTHS) {
        eprintln!("NBD, {job}");
        let mut economy = [Vec::new(), Vec::new()];
        let pairs = rounds(round_count, |side| {
            let asked = if side == Side::Ours { &pmbd } else { &nbdkit };
            let begin = asked.server.processor_time()?;
            let done = job.done(&asked.fio(job.arguments(SIZE_BYTES, runtime))?)?;
            let spent = asked.server.processor_time()? - begin;
            economy[usize::from(side == Side::Theirs)].push(done.count / spent.as_secs_f64());
            Ok::<_, miette::Report>(done.iops)
        })?;
        let goal = Goal::AtLeast(if job.depth == 1 { 1.0 } else { 1.3 });
        report.push(Row::new(format!("NBD {job}"), "nbdkit memory", "io/s", pairs, goal));
        let [ours, theirs] = economy;
        let pairs = ours.into_iter().zip(theirs).map(|(ours, theirs)| Pair { ours, theirs }).collect();
        report.push(Row::new("  per second of the server's CPU", "nbdkit memory", "io/s", pairs, Goal::None));
    }
    Ok(())
}

/// A server and where to ask it.
struct Asked {
    server: Server,
    socket: PathBuf,
}

impl Asked {
    /// Runs fio; what it wrote.
    fn fio(&self, arguments: Vec<String>) -> Result<String> {
        let output = Command::new("fio")
            .args(["--ioengine=nbd", &format!("--uri=nbd+unix:///?socket={}", self.socket.display())])
            .args(arguments)
            .output()
            .into_diagnostic()
            .wrap_err("cannot run fio")?;
        if !output.status.success() {
            bail!("fio failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
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

fn version(program: &str) -> Result<String> {
    let output = Command::new(program).arg("--version").output().into_diagnostic()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
