//! In the guest: a ublk server that is killed during a takeover.
//!
//! Begins the recovery of a quiesced device, fetches all tags of its first queues but not of the others, and kills itself. It uses the driver directly,
//! so that the state does not depend on `pmbd`.

#![expect(unsafe_code, reason = "the kernel is given commands with the address of a buffer")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use clap::Parser;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use miette::{IntoDiagnostic, Result, ensure};
use pm_ublk::sys;

/// Begins a takeover of a ublk device, and ends by SIGKILL.
#[derive(Parser)]
struct Cli {
    /// N of /dev/ublkcN.
    device_id: u32,
    /// The depth of the device's queues.
    #[arg(long)]
    depth: u16,
    /// The number of queues whose tags are fetched.
    #[arg(long)]
    ready: u16,
}

/// The buffer of all fetched tags. A quiesced device issues no requests.
static NO_DATA: [u8; 4096] = [0; 4096];

fn main() -> Result<()> {
    let Cli { device_id, depth, ready } = Cli::parse();
    begin_recovery(device_id)?;
    let device = open(&format!("/dev/ublkc{device_id}"))?;
    let mut ring: IoUring = IoUring::new(depth.into()).into_diagnostic()?;
    for queue in 0..ready {
        for tag in 0..depth {
            let entry = fetch(&device, queue, tag);
            // SAFETY: the device stays open, and the address in the entry is that of a static.
            unsafe { ring.submission().push(&entry) }.into_diagnostic()?;
        }
        ensure!(ring.submit().into_diagnostic()? == usize::from(depth), "not all tags were submitted");
        ensure!(ring.completion().next().is_none(), "the driver refused a tag of queue {queue}");
    }
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).into_diagnostic()
}

fn open(path: &str) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path).into_diagnostic()
}

#[expect(clippy::host_endian_bytes, reason = "for the kernel of this host")]
fn begin_recovery(device_id: u32) -> Result<()> {
    let control = open("/dev/ublk-control")?;
    let mut command = [0; 80];
    command[0..4].copy_from_slice(&device_id.to_ne_bytes());
    command[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    let entry = opcode::UringCmd80::new(types::Fd(control.as_raw_fd()), sys::UBLK_U_CMD_START_USER_RECOVERY);
    let mut ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(1).into_diagnostic()?;
    // SAFETY: the control device stays open until the command has completed, and there is no address in it.
    unsafe { ring.submission().push(&entry.cmd(command).build()) }.into_diagnostic()?;
    ring.submit_and_wait(1).into_diagnostic()?;
    match ring.completion().next().map(|answer| answer.result()) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(-errno)).into_diagnostic(),
        None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)).into_diagnostic(),
    }
}

#[expect(clippy::host_endian_bytes, reason = "for the kernel of this host")]
fn fetch(device: &File, queue: u16, tag: u16) -> squeue::Entry {
    let mut command = [0; 16];
    command[0..2].copy_from_slice(&queue.to_ne_bytes());
    command[2..4].copy_from_slice(&tag.to_ne_bytes());
    command[8..16].copy_from_slice(&(NO_DATA.as_ptr() as u64).to_ne_bytes());
    let device = types::Fd(device.as_raw_fd());
    opcode::UringCmd16::new(device, sys::UBLK_U_IO_FETCH_REQ).cmd(command).build()
}
