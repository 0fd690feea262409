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

/// How long a boot may take: far longer than it does, even on a machine that is busy with other things.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// How long an orderly end may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// How many lines of the console an error shows.
const CONSOLE_LINES: usize = 60;

/// What a command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code; 128 and the signal's number when a signal ended the command's shell.
    pub status: u8,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
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
    boot_time: Duration,
    setup_time: Duration,
    _nvdimm: Nvdimm,
    _directory: TempDir,
}

impl Vm {
    /// A guest with 2 processors, 3 GiB of memory, and an NVDIMM of 512 MiB in the cache, until the builder
    /// says otherwise.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The programs that a guest takes: those that run it, and those that are copied into it. Starting one
    /// makes sure of them; a program that starts several at once does so before.
    pub fn needs() -> Vec<Need> {
        [qemu::NEED].into_iter().chain(initramfs::NEEDS.iter().copied()).chain(initramfs::tools()).collect()
    }

    fn start(builder: &Builder) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            bail!("the guest is x86-64 and runs this machine's programs: this works on x86-64 only");
        }
        apt::ensure(&Self::needs())?;
        let cache = Cache::open()?;
        let kernel = kernel::obtain(&cache, builder.update_kernel)?;
        let base = initramfs::obtain(&cache, &kernel)?;
        let image = builder.image.clone().unwrap_or_else(|| cache.directory().join("nvdimm.img"));
        let nvdimm = Nvdimm::open(&image, builder.size_bytes, builder.fresh)?;
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
        // Copied even when nothing is put in: another process may replace the cached one once the cache is
        // unlocked.
        initramfs::with_puts(&base, &builder.puts, &files.initramfs)?;
        drop(cache);

        let begin = Instant::now();
        let agent = listen(&files.agent)?;
        let report = listen(&files.report)?;
        let mut qemu = Qemu::spawn(builder, &nvdimm, &files)?;
        let reports = Reports::collect(qemu.accept(&report)?);
        let mut link = Link::new(qemu.accept(&agent)?);
        let deadline = Deadline::after(Some(BOOT_TIMEOUT));
        link.wait_ready(deadline)
            .map_err(|report| with_console(report, &files))
            .wrap_err("the guest did not boot")?;
        let boot_time = begin.elapsed();
        // QEMU has read it. The directory may be left behind if this process is killed, and should then be
        // small.
        fs::remove_file(&files.initramfs).into_diagnostic()?;
        let (timeout, setup_time) = (builder.timeout, Duration::ZERO);
        let mut vm = Self {
            qemu,
            link,
            reports,
            files,
            timeout,
            boot_time,
            setup_time,
            _nvdimm: nvdimm,
            _directory: directory,
        };
        vm.set_up(builder, deadline)?;
        vm.setup_time = begin.elapsed() - boot_time;
        Ok(vm)
    }

    fn set_up(&mut self, builder: &Builder, deadline: Deadline) -> Result<()> {
        let script = setup::script(builder.dax, &builder.shares, &builder.modules);
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

    /// Runs a shell script and waits for its end. Output of what it leaves running in the background is lost
    /// from then on.
    ///
    /// # Errors
    /// When the guest is gone, or the builder's timeout passes (the cause is then a
    /// [`TimedOut`](super::TimedOut)); each with the end of the console. A script that fails is no error: see
    /// [`Output::status`].
    pub fn run(&mut self, script: &str) -> Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let status = self.run_into(script, &mut stdout, &mut stderr)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { status, stdout: text(stdout), stderr: text(stderr) })
    }

    /// As [`run`](Self::run), for a script that must succeed: what it wrote to its standard output.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), and an exit code other than zero, with all that the script wrote.
    pub fn check(&mut self, script: &str) -> Result<String> {
        let output = self.run(script)?;
        if output.status != 0 {
            bail!("{script:?} failed with {}\n{}{}", output.status, output.stdout, output.stderr);
        }
        Ok(output.stdout)
    }

    /// As [`run`](Self::run), handing the output over as it comes; the exit code.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), and those of the two sinks.
    pub fn run_into(&mut self, script: &str, stdout: &mut dyn Write, stderr: &mut dyn Write) -> Result<u8> {
        let deadline = Deadline::after(self.timeout);
        self.link.run(script, stdout, stderr, deadline).map_err(|report| with_console(report, &self.files))
    }

    /// Runs a shell on the console, and waits for its end; its exit code. The builder must have said
    /// [`on_terminal`](Builder::on_terminal).
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn shell(&mut self) -> Result<u8> {
        let script =
            r"stty -F /dev/ttyS0 sane; PS1='\h:\w\$ ' setsid -cw bash --norc </dev/ttyS0 >/dev/ttyS0 2>&1";
        self.run_into(script, &mut std::io::sink(), &mut std::io::sink())
    }

    /// The next line that the guest writes to `/dev/report`, waiting for it until `timeout` has passed.
    /// `None` then, and when the guest is gone.
    pub fn next_report(&self, timeout: Duration) -> Option<String> {
        self.reports.next(timeout)
    }

    /// Cuts the guest's power: kills QEMU. The lines of `/dev/report` not yet taken.
    ///
    /// # Durability
    /// The NVDIMM's file keeps every store that the guest has made. Every line is returned whose writer had
    /// closed `/dev/report` (or called `tcdrain` on it) before the cut, and some that were only just written;
    /// a line cut short is not.
    ///
    /// # Errors
    /// When QEMU cannot be killed, or its reports not be read.
    pub fn power_cut(mut self) -> Result<Vec<String>> {
        self.qemu.kill()?;
        self.reports.rest()
    }

    /// Unmounts everything, powers the guest off, and waits for that.
    ///
    /// # Errors
    /// When it takes longer than a minute (the guest is then killed), or QEMU fails.
    pub fn shutdown(mut self) -> Result<()> {
        // The agent takes the end of its connection for the end of its work.
        drop(self.link);
        match self.qemu.wait(SHUTDOWN_TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(with_console(miette!("QEMU failed: {status}"), &self.files)),
            None => Err(with_console(miette!("the guest did not power off"), &self.files)),
        }
    }

    /// From the start of QEMU until the agent answered.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// From then until the persistent memory was there, file systems were mounted and modules loaded.
    pub fn setup_time(&self) -> Duration {
        self.setup_time
    }
}

/// Here, as what a guest is to be like knows nothing of guests that run.
impl Builder {
    /// Boots the guest, and returns when it is ready for commands.
    ///
    /// The first time takes a minute: programs are installed (as root), the kernel is fetched, the initramfs
    /// built. Later ones take the few seconds of the boot.
    ///
    /// # Errors
    /// When something is missing and cannot be had, with what to do; when the image is in use; when the guest
    /// does not come up, with the end of its console.
    pub fn start(self) -> Result<Vm> {
        Vm::start(&self)
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot listen at {}", path.display()))
}

/// The error with the end of the console, where the guest's kernel says what happened to it.
fn with_console(report: Report, files: &Files) -> Report {
    let text = read_tail(&files.console) + &qemu::read_lossy(&files.log);
    if text.is_empty() { report } else { report.wrap_err(format!("the guest's console ended with:\n{text}")) }
}

fn read_tail(path: &Path) -> String {
    let text = qemu::read_lossy(path);
    let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES)..].iter().map(|line| format!("{line}\n")).collect()
}
