//! QEMU's command line, and the process.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};
use wait_timeout::ChildExt;

use super::builder::Builder;
use super::nvdimm::Nvdimm;
use super::setup;
use crate::apt::{self, Need};

/// QEMU and its package.
pub(super) const NEED: Need = Need::new("qemu-system-x86_64", "qemu-system-x86");

/// The interval of polling.
const PAUSE: Duration = Duration::from_millis(5);

/// The kernel's command line. An oops is a panic, and a panic ends QEMU.
///
/// The kernel boots on one processor, and init starts the others: during boot the kernel patches its own code, and in software emulation a processor
/// that executes code during a patch causes an oops, in about one of sixty boots on a busy machine. `tsc=reliable` avoids such patches of the clock's
/// code. `lpj` saves two seconds of calibration for the other processors; delays may be longer than requested.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off no_timer_check \
                            maxcpus=1 tsc=reliable lpj=16000000";

/// The files and sockets of one guest.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    /// The console output of the guest's kernel and of init.
    pub(super) console: PathBuf,
    /// The standard error of QEMU.
    pub(super) log: PathBuf,
    pub(super) agent: PathBuf,
    pub(super) report: PathBuf,
}

/// A running QEMU, killed when it is dropped.
#[derive(Debug)]
pub(super) struct Qemu {
    child: Child,
    log: PathBuf,
}

impl Qemu {
    /// Starts QEMU. The sockets in `files` are the caller's: QEMU connects to them.
    pub(super) fn spawn(builder: &Builder, nvdimm: &Nvdimm, files: &Files) -> Result<Self> {
        let program = apt::find(NEED.program).ok_or_else(|| miette!("{} is not on PATH", NEED.program))?;
        let log = File::create(&files.log).into_diagnostic()?;
        let mut command = Command::new(program);
        command.args(arguments(builder, nvdimm, files)?);
        if builder.on_terminal {
            command.stdin(Stdio::inherit()).stdout(Stdio::inherit());
        } else {
            // QEMU does not read its standard input: the descriptor only keeps the lock.
            command.stdin(nvdimm.share_lock()?).stdout(Stdio::null());
        }
        let child = command.stderr(log).spawn().into_diagnostic().wrap_err("cannot start QEMU")?;
        Ok(Self { child, log: files.log.clone() })
    }

    /// Waits until QEMU connects to `listener`.
    pub(super) fn accept(&mut self, listener: &UnixListener) -> Result<UnixStream> {
        listener.set_nonblocking(true).into_diagnostic()?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).into_diagnostic()?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    return Err(error).into_diagnostic().wrap_err("cannot accept QEMU's connection");
                }
            }
            if let Some(status) = self.child.try_wait().into_diagnostic()? {
                bail!("QEMU ended during startup ({status}): {}", read_lossy(&self.log).trim_end());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Kills QEMU and waits for its end.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill().and_then(|()| self.child.wait()).into_diagnostic().wrap_err("cannot end QEMU")?;
        Ok(())
    }

    /// Waits until QEMU ends by itself; `None` after `timeout`.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        self.child.wait_timeout(timeout).into_diagnostic()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        if let Err(report) = self.kill() {
            eprintln!("{report:?}");
        }
    }
}

/// The text of a log, or why it cannot be read: it only explains another error.
pub(super) fn read_lossy(path: &Path) -> String {
    fs::read(path).map_or_else(
        |error| format!("(cannot read {}: {error})", path.display()),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

fn arguments(builder: &Builder, nvdimm: &Nvdimm, files: &Files) -> Result<Vec<String>> {
    let nvdimm_mib = nvdimm.size_bytes / super::MIB;
    let console = option_value(&files.console)?;
    let console = if builder.on_terminal {
        format!("stdio,id=console,signal=off,logfile={console}")
    } else {
        format!("file,id=console,path={console}")
    };
    let mut arguments: Vec<String> = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    add("-machine", "q35,nvdimm=on".into());
    add("-accel", "tcg,thread=multi".into());
    add("-cpu", "max".into());
    add("-smp", builder.cpu_count.to_string());
    // Room for the NVDIMM and its alignment to a section.
    let memory_mib = builder.memory_mib;
    add(
        "-m",
        format!("{memory_mib}M,slots=2,maxmem={}M", (memory_mib + nvdimm_mib + 1024).next_multiple_of(1024)),
    );
    // share=on: the guest's stores go to the file's pages and survive a kill of QEMU.
    let memory = option_value(&nvdimm.path)?;
    add("-object", format!("memory-backend-file,id=nv0,share=on,mem-path={memory},size={nvdimm_mib}M"));
    add("-device", "nvdimm,id=nvdimm0,memdev=nv0".into());
    add("-kernel", files.kernel.display().to_string());
    add("-initrd", files.initramfs.display().to_string());
    add("-append", COMMAND_LINE.into());
    add("-display", "none".into());
    add("-chardev", console);
    add("-serial", "chardev:console".into());
    add("-chardev", format!("socket,id=report,path={}", option_value(&files.report)?));
    add("-serial", "chardev:report".into());
    add("-device", "virtio-serial-pci".into());
    add("-chardev", format!("socket,id=agent,path={}", option_value(&files.agent)?));
    add("-device", "virtserialport,chardev=agent,name=pm.agent".into());
    for (index, share) in builder.shares.iter().enumerate() {
        let readonly = if share.writable { "off" } else { "on" };
        let (host, tag) = (option_value(&share.host)?, setup::tag(index));
        add("-virtfs", format!("local,path={host},mount_tag={tag},security_model=none,readonly={readonly}"));
    }
    if let Some(plug) = &builder.network {
        let node = plug.node;
        let (own, other) = (option_value(&plug.socket(node))?, option_value(&plug.socket(3 - node))?);
        let remote = format!("remote.type=unix,remote.path={other}");
        add("-netdev", format!("dgram,id=cable,local.type=unix,local.path={own},{remote}"));
        // A locally administered address.
        add("-device", format!("virtio-net-pci,netdev=cable,mac=52:54:00:00:00:{node:02x},romfile="));
    }
    arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
    Ok(arguments)
}

/// `path` as a value in a list of QEMU's options, where a comma is doubled.
fn option_value(path: &Path) -> Result<String> {
    let path = path
        .to_str()
        .ok_or_else(|| miette!("{} is not UTF-8, which QEMU's options must be", path.display()))?;
    Ok(path.replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{Plug, Share, Vm};

    fn files() -> Files {
        let path = |name: &str| PathBuf::from(format!("/run/{name}"));
        Files {
            kernel: path("vmlinuz"),
            initramfs: path("initramfs"),
            console: path("console"),
            log: path("log"),
            agent: path("agent"),
            report: path("report"),
        }
    }

    #[test]
    fn sizes_and_shares_reach_the_command_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let nvdimm = Nvdimm::open(&directory.path().join("a,b"), 256 * crate::vm::MIB, true).expect("made");
        let share = Share { host: "/some/where".into(), guest: "/mnt".into(), writable: false };
        let builder = Vm::builder().memory_mib(1024).share(share);
        let line = arguments(&builder, &nvdimm, &files()).expect("UTF-8").join(" ");
        assert!(line.contains("-m 1024M,slots=2,maxmem=3072M"), "{line}");
        assert!(line.contains("a,,b,size=256M"), "{line}");
        assert!(line.contains("path=/some/where,mount_tag=share0,security_model=none,readonly=on"), "{line}");
        assert!(line.contains("file,id=console,path=/run/console"), "{line}");
    }

    #[test]
    fn ends_of_cable_are_each_others_remote() {
        let directory = tempfile::tempdir().expect("a directory");
        let nvdimm = Nvdimm::open(&directory.path().join("nv"), 128 * crate::vm::MIB, true).expect("made");
        for (plug, nodes) in Plug::pair().expect("a cable").into_iter().zip([[1, 2], [2, 1]]) {
            let [own, other] = nodes.map(|node| plug.socket(node).display().to_string());
            let line = arguments(&Vm::builder().network(plug), &nvdimm, &files()).expect("UTF-8").join(" ");
            assert!(
                line.contains(&format!("local.path={own},remote.type=unix,remote.path={other}")),
                "{line}"
            );
        }
    }

    #[test]
    fn interactive_console_is_terminal() {
        let directory = tempfile::tempdir().expect("a directory");
        let nvdimm = Nvdimm::open(&directory.path().join("nv"), 128 * crate::vm::MIB, true).expect("made");
        let line = arguments(&Vm::builder().on_terminal(true), &nvdimm, &files()).expect("UTF-8").join(" ");
        assert!(line.contains("stdio,id=console,signal=off,logfile=/run/console"), "{line}");
    }
}
