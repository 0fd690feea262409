//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use pm_cli_common::{Docs, Size};
use pm_core::insn::{FlushInsn, NtWidth};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What `--help` ends with.
const EXAMPLES: &str = "\
Examples:
  pmbd serve disk.pm --size 1G                 create the disk if it is not there, and serve it
  pmbd serve /dev/dax0.0 --transport ublk      a device-dax, made a disk by `pmbd create /dev/dax0.0 --format`
  nbdinfo 'nbd+unix:///?socket=disk.pm.sock'   what an NBD client sees
  pmbd stop disk.pm";

/// Persistent memory as a block device.
///
/// A disk lives in a pool: a file, or a device-dax, with a checksummed header at its start, a backup of it at its end, and a
/// directory of roots, one of which leads to the disk's descriptor.
///
/// Sizes are numbers with K, M, G or T behind them, powers of 1024, or numbers of bytes.
///
/// Exit status: 0 when all went well, 1 when something failed, 2 for a wrong command line, 3 when `check` found corruption,
/// repaired or not.
#[derive(Debug, Parser)]
#[command(name = "pmbd", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Answers in JSON, one object a line, for machines; an error is an object on stderr, with `error`, `causes` and `help`.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the disk at PATH until it is told to stop; with --size, create it first if it is not there.
    Serve(Box<Serve>),
    /// Create a disk.
    Create(Create),
    /// Tell what is at PATH.
    Info(Info),
    /// List the disks that are being served on this machine, with the clients that are connected.
    List,
    /// Stop a server, by its disk's path, its device, its socket or its process.
    Stop(Stop),
    /// Verify the disk at PATH: both headers, the roots, the descriptor. Repairs nothing unless asked.
    Check(Check),
    #[command(flatten)]
    Docs(Docs),
}

/// Which protocol clients speak.
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
    /// Create the disk with this size if there is nothing at PATH. Not with --read-only or --raw.
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// Which protocol to serve.
    #[arg(long, value_enum, default_value_t = Transport::Auto, env = "PMBD_TRANSPORT")]
    pub(crate) transport: Transport,
    #[command(flatten)]
    pub(crate) open: Open,
    /// Let clients read, but not write.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Fault all memory in at the start, so that first accesses are as fast as later ones.
    #[arg(long)]
    pub(crate) populate: bool,
    /// How long at most, in microseconds, a queue or connection looks for the next request before it sleeps.
    #[arg(long, value_name = "US", default_value_t = 50, env = "PMBD_SPIN_US")]
    pub(crate) spin_us: u64,

    /// NBD: the Unix socket. PATH.sock unless said.
    #[arg(long, value_name = "SOCKET", help_heading = "NBD")]
    pub(crate) socket: Option<PathBuf>,
    /// NBD: listen on this loopback address too, such as 127.0.0.1:10809. Every user of this machine may connect there, and
    /// read and write the disk; the socket is for this user alone.
    #[arg(long, value_name = "ADDR", help_heading = "NBD")]
    pub(crate) tcp: Option<SocketAddr>,
    /// NBD: the most clients at a time.
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "NBD")]
    pub(crate) max_clients: usize,
    /// NBD: a name for the export, beside the empty one.
    #[arg(long, value_name = "NAME", default_value = "", help_heading = "NBD")]
    pub(crate) export_name: String,

    /// ublk: N of /dev/ublkbN. The first free one unless said.
    #[arg(long, value_name = "N", help_heading = "ublk")]
    pub(crate) device: Option<u32>,
    /// ublk: how many queues, each with a thread. As many as processors, at most 4, unless said.
    #[arg(long, value_name = "N", help_heading = "ublk", env = "PMBD_QUEUES")]
    pub(crate) queues: Option<u16>,
    /// ublk: requests in flight in each queue. 128 unless said.
    #[arg(long, value_name = "N", help_heading = "ublk", env = "PMBD_DEPTH")]
    pub(crate) depth: Option<u16>,
    /// ublk: the longest request. 512K unless said.
    #[arg(long, value_name = "SIZE", help_heading = "ublk")]
    pub(crate) max_io: Option<Size>,
    /// ublk: where the queues' threads run: `none`, `submitters`, or CPUs such as 0,2,4.
    #[arg(long, value_name = "CPUS", default_value = "none", help_heading = "ublk")]
    pub(crate) affinity: String,
}

/// How a region is opened.
#[derive(Debug, Args)]
pub(crate) struct Open {
    /// Take the bytes at PATH as they are: no pool, all of them are the disk. Their number is a multiple of the sector. Holes
    /// in a file get blocks.
    #[arg(long)]
    pub(crate) raw: bool,
    /// The sector of a new or raw disk: 512 or 4096 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub(crate) sector: u64,
    /// Force how cache lines are written back, for tests and study.
    #[arg(long, value_enum, value_name = "INSN")]
    pub(crate) flush: Option<Flush>,
    /// Force the width of non-temporal stores, in bytes: 16, 32 or 64.
    #[arg(long, value_name = "BYTES")]
    pub(crate) nt_width: Option<u8>,
}

/// Names of [`FlushInsn`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Flush {
    /// Write back, keep cached.
    Clwb,
    /// Write back and evict, in any order.
    Clflushopt,
    /// Write back and evict, one after the other.
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

/// The width of a non-temporal store from its number of bytes.
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
    /// The disk's file, which must not be there; with --format, the file or device-dax that becomes the disk.
    pub(crate) path: PathBuf,
    /// The disk's size.
    #[arg(long, value_name = "SIZE", required_unless_present = "format", conflicts_with = "format")]
    pub(crate) size: Option<Size>,
    /// The sector: 512 or 4096 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub(crate) sector: u64,
    /// Make the disk of a file or device-dax that is there, as large as it has room for. What it holds is lost.
    #[arg(long)]
    pub(crate) format: bool,
    /// With --format: destroy even a pool.
    #[arg(long, requires = "format")]
    pub(crate) overwrite: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Info {
    /// The disk's file, or a device-dax.
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) open: Open,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The disk's file, or a device-dax. It must not be served meanwhile.
    pub(crate) path: PathBuf,
    /// Restore a corrupted copy of the header from the other.
    #[arg(long)]
    pub(crate) repair: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The disk's path, /dev/ublkbN, a socket, or a process number.
    pub(crate) target: String,
    /// Stop even while a file system is mounted on the device or NBD clients are connected. They fail as if their disk were
    /// pulled.
    #[arg(long)]
    pub(crate) force: bool,
}
