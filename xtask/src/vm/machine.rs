//! A running guest.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Report, Result, WrapErr, bail, miette};
use tempfile::TempDir;

use super::builder::Builder;
use super::cache::Cache;
use super::link::{Deadline, Link};
use super::nvdimm::Nvdimm;
use super::qemu::{self, Files, Qemu};
use super::report::Reports;
use super::{initramfs, kernel, setup};
use crate::apt::{self, Need};

/// The time limit of a boot, generous for a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// The time limit of an orderly shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of console lines in an error.
const CONSOLE_LINES: usize = 60;

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code; 128 and the signal's number when a signal ended the command's shell.
    pub status: u8,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A running guest. Dropping it ends QEMU at once, as [`power_cut`](Self::power_cut) does.
#[derive(Debug)]
pub struct Vm {
    // Dropped in this order: QEMU ends before its image is unlocked and its files are removed.
    qemu: Qemu,
    link: Link,
    reports: Reports,
    files: Files,
    timeout: Option<Duration>,
    /// From the start of QEMU until the agent answered.
    pub boot_time: Duration,
    /// From then until the persistent memory was ready, file systems were mounted and modules loaded.
    pub setup_time: Duration,
    _nvdimm: Nvdimm,
    _directory: TempDir,
}

impl Vm {
    /// The default configuration: 2 processors, 3 GiB of memory, and an NVDIMM of 512 MiB in the cache.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The programs that run a guest, and those that are copied into it. [`Builder::start`] installs them; a program that starts several guests at
    /// the same time does so before.
    pub fn needs() -> Vec<Need> {
        [qemu::NEED].into_iter().chain(initramfs::NEEDS.iter().copied()).chain(initramfs::tools()).collect()
    }

    fn set_up(&mut self, builder: &Builder, deadline: Deadline) -> Result<()> {
        let script = setup::script(builder);
        let mut output = Vec::new();
        let status = self.link.run(&script, &mut std::io::sink(), &mut output, deadline);
        match status.map_err(|report| with_console(report, &self.files))? {
            0 => Ok(()),
            status => {
                let output = String::from_utf8_lossy(&output);
                Err(miette!("the guest's setup failed with {status}: {}", output.trim_end()))
            }
        }
    }

    /// Runs a shell script and waits for its end. Later output of its background processes is discarded.
    ///
    /// # Errors
    /// If the guest has ended, or the builder's timeout passes (the cause is then a [`TimedOut`](super::TimedOut)); each with the end of the console.
    /// A script that fails is not an error: see [`Output::status`].
    pub fn run(&mut self, script: &str) -> Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let status = self.run_into(script, &mut stdout, &mut stderr)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { status, stdout: text(stdout), stderr: text(stderr) })
    }

    /// Runs a script that must succeed, and returns its standard output.
    pub fn check(&mut self, script: &str) -> Result<String> {
        let output = self.run(script)?;
        if output.status != 0 {
            bail!("{script:?} failed with {}\n{}{}", output.status, output.stdout, output.stderr);
        }
        Ok(output.stdout)
    }

    /// Runs a script, copies its output to two streams as it arrives, and returns the exit code.
    pub fn run_into(&mut self, script: &str, stdout: &mut dyn Write, stderr: &mut dyn Write) -> Result<u8> {
        let deadline = Deadline::after(self.timeout);
        self.link.run(script, stdout, stderr, deadline).map_err(|report| with_console(report, &self.files))
    }

    /// Runs a shell on the console, which must be [`on_terminal`](Builder::on_terminal), and returns its exit code.
    pub fn shell(&mut self) -> Result<u8> {
        let script =
            r"stty -F /dev/ttyS0 sane; PS1='\h:\w\$ ' setsid -cw bash --norc </dev/ttyS0 >/dev/ttyS0 2>&1";
        self.run_into(script, &mut std::io::sink(), &mut std::io::sink())
    }

    /// The next line that the guest writes to `/dev/report`; `None` after `timeout`, and when the guest has ended.
    pub fn next_report(&self, timeout: Duration) -> Option<String> {
        self.reports.next(timeout)
    }

    /// Cuts the guest's power by killing QEMU, and returns the lines of `/dev/report` that were not yet taken.
    ///
    /// # Durability
    /// The NVDIMM's file keeps every store of the guest. A line is returned if its writer has closed `/dev/report` (or called `tcdrain` on it) before
    /// the cut, and possibly if it was written just before; an incomplete line is not.
    pub fn power_cut(mut self) -> Result<Vec<String>> {
        self.qemu.kill()?;
        self.reports.rest()
    }

    /// Unmounts all file systems, powers the guest off, and waits for the end of QEMU.
    ///
    /// # Errors
    /// If this takes longer than a minute (the guest is then killed), or QEMU fails.
    pub fn shutdown(mut self) -> Result<()> {
        // The agent ends when its connection is closed.
        drop(self.link);
        match self.qemu.wait(SHUTDOWN_TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(with_console(miette!("QEMU failed: {status}"), &self.files)),
            None => Err(with_console(miette!("the guest did not power off"), &self.files)),
        }
    }
}

// Here and not in `builder`, which the modules of a running guest import.
impl Builder {
    /// Boots the guest, and returns when it is ready for commands.
    ///
    /// The first start takes a minute: programs are installed (as root), the kernel is fetched, and the initramfs is built. Later starts take the few
    /// seconds of the boot.
    ///
    /// # Errors
    /// If a program is missing and cannot be installed, with the command to install it; if the image is in use; if the guest does not boot, with the
    /// end of its console.
    pub fn start(self) -> Result<Vm> {
        if !cfg!(target_arch = "x86_64") {
            bail!("the guest is x86-64 and runs this machine's programs: this works on x86-64 only");
        }
        apt::ensure(&Vm::needs())?;
        let cache = Cache::open()?;
        let kernel = kernel::obtain(&cache, self.update_kernel)?;
        let base = initramfs::obtain(&cache, &kernel)?;
        let image = self.image.clone().unwrap_or_else(|| cache.directory().join("nvdimm.img"));
        let nvdimm = Nvdimm::open(&image, self.size_bytes, self.fresh)?;
        let directory = TempDir::with_prefix("pm-vm-").into_diagnostic()?;
        let in_directory = |name: &str| directory.path().join(name);
        let files = Files {
            kernel: kernel.image,
            initramfs: in_directory("initramfs"),
            console: in_directory("console"),
            log: in_directory("log"),
            agent: in_directory("agent"),
            report: in_directory("report"),
        };
        // Copied in any case: another process may replace the cached image once the cache is unlocked.
        initramfs::with_puts(&base, &self.puts, &files.initramfs)?;
        drop(cache);

        let begin = Instant::now();
        let agent = listen(&files.agent)?;
        let report = listen(&files.report)?;
        let mut qemu = Qemu::spawn(&self, &nvdimm, &files)?;
        let reports = Reports::collect(qemu.accept(&report)?);
        let mut link = Link::new(qemu.accept(&agent)?);
        let deadline = Deadline::after(Some(BOOT_TIMEOUT));
        link.wait_ready(deadline)
            .map_err(|report| with_console(report, &files))
            .wrap_err("the guest did not boot")?;
        let boot_time = begin.elapsed();
        // QEMU has read it. If this process is killed, the directory stays, and should be small.
        fs::remove_file(&files.initramfs).into_diagnostic()?;
        let mut vm = Vm {
            qemu,
            link,
            reports,
            files,
            timeout: self.timeout,
            boot_time,
            setup_time: Duration::ZERO,
            _nvdimm: nvdimm,
            _directory: directory,
        };
        vm.set_up(&self, deadline)?;
        vm.setup_time = begin.elapsed() - boot_time;
        Ok(vm)
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot listen at {}", path.display()))
}

/// Adds the end of the console, which has the kernel's messages, to an error.
fn with_console(report: Report, files: &Files) -> Report {
    let text = read_tail(&files.console) + &qemu::read_lossy(&files.log);
    if text.is_empty() { report } else { report.wrap_err(format!("the guest's console ended with:\n{text}")) }
}

fn read_tail(path: &Path) -> String {
    let text = qemu::read_lossy(path);
    let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES)..].iter().map(|line| format!("{line}\n")).collect()
}
