//! The command line.

use super::buffer::Buffer;
use super::writes::Writes;
use clap::{Args, Parser, Subcommand, ValueEnum};
use pm_cli_common::{Docs, Emulation, Protect, Size};
use pm_core::insn::{FlushInsn, NtWidth};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The end of `--help`.
const EXAMPLES: &str = "\
Examples:
  pmbd serve disk.pm --size 1G                 create the disk if it does not exist, and serve it
  pmbd serve /dev/dax0.0 --transport ublk      a device-dax that `pmbd create /dev/dax0.0 --format` made a disk
  nbdinfo 'nbd+unix:///?socket=disk.pm.sock'   the disk as an NBD client sees it
  pmbd stop disk.pm";

/// Persistent memory as a block device.
///
/// A disk is kept in a pool: a file, or a device-dax, with a checksummed header at its start, a backup of it at its end, and a
/// directory of roots, one of which refers to the disk's descriptor.
///
/// Sizes are numbers with the suffix K, M, G or T, powers of 1024, or numbers of bytes.
///
/// Exit status: 0 for success, 1 for a failure, 2 for a wrong command line, 3 when `check` found corruption, repaired or not.
#[derive(Debug, Parser)]
#[command(name = "pmbd", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print JSON, one object a line; an error is an object on stderr, with `error`, `causes` and `help`.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the disk at PATH until it is stopped; with --size, create it first if it does not exist.
    Serve(Box<Serve>),
    /// Create a disk.
    Create(Create),
    /// Print the properties of the disk at PATH.
    Info(Info),
    /// List the disks that are served on this machine, with their clients.
    List,
    /// Stop a server, given its disk's path, its device, its socket or its process.
    Stop(Stop),
    /// Verify the disk at PATH: both headers, the roots, the descriptor. Repairs nothing without --repair.
    Check(Check),
    #[command(flatten)]
    Docs(Docs),
}

/// The protocol of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// ublk where the kernel has it, else NBD.
    Auto,
    /// The kernel's /dev/ublkbN.
    Ublk,
    /// Network Block Device, on a Unix socket.
    Nbd,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The disk: a file, or a device-dax.
    pub(crate) path: PathBuf,
    /// Create the disk with this size if PATH does not exist. Not with --read-only or --raw.
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// The protocol.
    #[arg(long, value_enum, default_value_t = Transport::Auto, env = "PMBD_TRANSPORT")]
    pub(crate) transport: Transport,
    #[command(flatten)]
    pub(crate) open: Open,
    /// Refuse writes.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Fault in all memory at the start, so that first accesses are as fast as later ones.
    #[arg(long)]
    pub(crate) populate: bool,
    /// The longest time, in microseconds, for which a queue or connection polls for the next request before it sleeps.
    #[arg(long, value_name = "US", default_value_t = 50, env = "PMBD_SPIN_US")]
    pub(crate) spin_us: u64,
    /// Measure the time that requests spend in windows of --protect, copies, fences, and delays of --emulate; printed when the server stops.
    #[arg(long)]
    pub(crate) times: bool,

    /// NBD: the Unix socket. Default: PATH.sock.
    #[arg(long, value_name = "SOCKET", help_heading = "NBD")]
    pub(crate) socket: Option<PathBuf>,
    /// NBD: listen on this loopback address too, such as 127.0.0.1:10809. Every user of this machine may connect there, and read and write
    /// the disk; the socket is for this user only.
    #[arg(long, value_name = "ADDR", help_heading = "NBD")]
    pub(crate) tcp: Option<SocketAddr>,
    /// NBD: the most clients at a time.
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "NBD")]
    pub(crate) max_clients: usize,
    /// NBD: a name for the export, in addition to the empty one.
    #[arg(long, value_name = "NAME", default_value = "", help_heading = "NBD")]
    pub(crate) export_name: String,

    /// ublk: N of /dev/ublkbN. Default: the first free one.
    #[arg(long, value_name = "N", help_heading = "ublk")]
    pub(crate) device: Option<u32>,
    /// ublk: the number of queues, each with a thread. Default: as many as processors, at most 4.
    #[arg(long, value_name = "N", help_heading = "ublk", env = "PMBD_QUEUES")]
    pub(crate) queues: Option<u16>,
    /// ublk: requests in flight in each queue. Default: 128.
    #[arg(long, value_name = "N", help_heading = "ublk", env = "PMBD_DEPTH")]
    pub(crate) depth: Option<u16>,
    /// ublk: the longest request. Default: 512K.
    #[arg(long, value_name = "SIZE", help_heading = "ublk")]
    pub(crate) max_io: Option<Size>,
    /// ublk: where the queues' threads run: `none`, `submitters`, or CPUs such as 0,2,4.
    #[arg(long, value_name = "CPUS", default_value = "none", help_heading = "ublk")]
    pub(crate) affinity: String,

    #[command(flatten)]
    pub(crate) writes: Writes,
    #[command(flatten)]
    pub(crate) buffer: Buffer,
    #[command(flatten)]
    pub(crate) protect: Protect,
    #[command(flatten)]
    pub(crate) emulation: Emulation,
}

/// How a region is opened.
#[derive(Debug, Args)]
pub(crate) struct Open {
    /// Serve all bytes at PATH as the disk, without a pool. Their number is a multiple of the sector. Holes in a file get blocks.
    #[arg(long)]
    pub(crate) raw: bool,
    /// The sector of a new or raw disk: 512 or 4096 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub(crate) sector: u64,
    /// Force the instruction that writes cache lines back, for tests and study.
    #[arg(long, value_enum, value_name = "INSN")]
    pub(crate) flush: Option<Flush>,
    /// Force the width of non-temporal stores, in bytes: 16, 32 or 64.
    #[arg(long, value_name = "BYTES")]
    pub(crate) nt_width: Option<u8>,
}

/// Names of [`FlushInsn`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Flush {
    /// Writes back, keeps the line cached.
    Clwb,
    /// Writes back and evicts, in any order.
    Clflushopt,
    /// Writes back and evicts, one line after the other.
    Clflush,
    /// aarch64.
    DcCvap,
}

impl From<Flush> for FlushInsn {
    fn from(flush: Flush) -> Self {
        match flush {
            Flush::Clwb => Self::Clwb,
            Flush::Clflushopt => Self::ClflushOpt,
            Flush::Clflush => Self::Clflush,
            Flush::DcCvap => Self::DcCvap,
        }
    }
}

/// The width of a non-temporal store, from its number of bytes.
pub(crate) const fn nt_width(bytes: u8) -> Option<NtWidth> {
    match bytes {
        16 => Some(NtWidth::B16),
        32 => Some(NtWidth::B32),
        64 => Some(NtWidth::B64),
        _ => None,
    }
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The disk's file, which must not exist; with --format, the file or device-dax that becomes the disk.
    pub(crate) path: PathBuf,
    /// The disk's size.
    #[arg(long, value_name = "SIZE", required_unless_present = "format", conflicts_with = "format")]
    pub(crate) size: Option<Size>,
    /// The sector: 512 or 4096 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub(crate) sector: u64,
    /// Make the disk of an existing file or device-dax, as large as possible. Its contents are lost.
    #[arg(long)]
    pub(crate) format: bool,
    /// With --format: overwrite an existing pool.
    #[arg(long, requires = "format")]
    pub(crate) overwrite: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Info {
    /// The disk's file, or a device-dax.
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) open: Open,
    /// The directory of the buffers' file, in which a killed server has left writes.
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub(crate) buffer_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The disk's file, or a device-dax. It must not be served at the same time.
    pub(crate) path: PathBuf,
    /// Restore a corrupted copy of the header from the other.
    #[arg(long)]
    pub(crate) repair: bool,
    /// The directory of the buffers' file, in which a killed server has left writes.
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub(crate) buffer_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The disk's path, /dev/ublkbN, a socket, or a process number.
    pub(crate) target: String,
    /// Stop even while a file system is mounted on the device or NBD clients are connected. They fail as if their disk were pulled.
    #[arg(long)]
    pub(crate) force: bool,
}
