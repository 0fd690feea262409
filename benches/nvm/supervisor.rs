//! Runs the worker, and takes down what it leaves.

use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::nvm::journal::{Journal, Left};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use xtask::apt;

/// The exit code of a program that was interrupted.
const INTERRUPTED: u8 = 130;

/// Of the journal, and of mounted file systems.
pub(crate) fn directory() -> PathBuf {
    if apt::is_root() { "/run/pm-bench-nvm".into() } else { std::env::temp_dir().join("pm-bench-nvm") }
}

/// Takes down what a killed run has left.
pub(crate) fn clean() -> Result<ExitCode> {
    let (mut journal, _lock) = Journal::lock(&directory()).into_diagnostic()?;
    undo(&mut journal)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs this program with the same arguments as the worker.
pub(crate) fn run() -> Result<ExitCode> {
    let directory = directory();
    let (mut journal, _lock) = Journal::lock(&directory).into_diagnostic()?;
    undo(&mut journal)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).into_diagnostic()?;
    }
    let executable = std::env::current_exe().into_diagnostic()?;
    let mut worker = Command::new(executable)
        .args(std::env::args_os().skip(1))
        .arg("--worker")
        // So that a signal of the terminal reaches only the supervisor, and that the programs of the worker end with it.
        .process_group(0)
        .spawn()
        .into_diagnostic()
        .wrap_err("cannot start the worker")?;
    let status = wait(&mut worker, &interrupted);
    // The worker has written the entries since.
    let mut journal = Journal::open(&directory).into_diagnostic()?;
    journal.undo_to(0).into_diagnostic().wrap_err("not everything was taken down; --clean tries again")?;
    let Some(status) = status? else {
        worker.wait().into_diagnostic()?;
        eprintln!("interrupted; everything was taken down");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    if let Some(signal) = status.signal() {
        eprintln!("the worker was ended by signal {signal}; everything was taken down");
    }
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// The journal, for the worker, which records itself in it.
pub(crate) fn journal_of_worker() -> Result<Journal> {
    // If the supervisor is killed, so is the worker.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).into_diagnostic()?;
    let mut journal = Journal::open(&directory()).into_diagnostic()?;
    journal.add(Left::own_processes()).into_diagnostic()?;
    Ok(journal)
}

/// Waits for the worker's end, or an interruption.
fn wait(worker: &mut Child, interrupted: &AtomicBool) -> Result<Option<ExitStatus>> {
    while !interrupted.load(Ordering::Relaxed) {
        if let Some(status) = worker.try_wait().into_diagnostic()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

fn undo(journal: &mut Journal) -> Result<()> {
    for left in journal.entries() {
        eprintln!("taking down what a killed run has left: {left:?}");
    }
    journal.undo_to(0).into_diagnostic()
}

/// A directory for a mounted file system of this name.
pub(crate) fn mount_point(name: &str) -> PathBuf {
    Path::new(&directory()).join(name)
}
