//! The command line.

use clap::{Args, Parser, Subcommand};
use pm_cli_common::{Docs, Size};
use std::path::PathBuf;

/// What `--help` ends with.
const EXAMPLES: &str = "\
Examples:
  pm heap create data.pm --size 64M              a pool with an empty heap in it
  pm heap check data.pm                          is everything in it sound? Changes nothing
  pm heap repair data.pm                         what is not, after asking
  pm heap map data.pm -o data.svg                a picture of what is allocated
  pm pool info data.pm                           identity, header, roots";

/// Looks at pools and heaps of persistent memory, and repairs them.
///
/// A pool is a file, or a device-dax, with a checksummed header at its start, a backup of it at its end, and a directory of
/// roots. A heap is what pm-alloc makes of a pool: logs and blocks.
///
/// Only `create` and `repair` change what they are pointed at. No other program may have it open for writing meanwhile.
///
/// Sizes are numbers with K, M, G or T behind them, powers of 1024, or numbers of bytes.
///
/// Exit status: 0 when all went well, 1 when something failed, 2 for a wrong command line, 3 when `check` found corruption, or
/// `repair` left some.
#[derive(Debug, Parser)]
#[command(name = "pm", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Answers in JSON, one object a line, for machines.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Pools: header and roots.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Heaps in pools: logs and blocks.
    #[command(subcommand)]
    Heap(HeapCommand),
    #[command(flatten)]
    Docs(Docs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Tell what the pool is: identity, medium, header, roots.
    Info(Target),
    /// Verify both copies of the header, and the roots. Changes nothing.
    Check(Target),
    /// Restore a corrupted copy of the header from the other.
    Repair(Repair),
}

#[derive(Debug, Subcommand)]
pub(crate) enum HeapCommand {
    /// Create a file with an empty heap in it.
    Create(Create),
    /// Tell how the heap is laid out, what is in use, and what its next opening will recover.
    Info(Target),
    /// Verify every header, log entry and root, as they are after a recovery. Changes nothing, and does not recover.
    Check(Target),
    /// Recover the heap, and store headers where corrupted ones were found; what was below them is lost.
    Repair(Repair),
    /// Draw the heap: what is allocated, free and lost, and how often lines were written.
    Map(Map),
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The file, or device-dax.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// The file, or device-dax.
    pub(crate) file: PathBuf,
    /// Do it without asking.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The file, which must not be there.
    pub(crate) file: PathBuf,
    /// Its size.
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Size,
    /// How many transactions can commit at the same time, 1 to 1,024. After the size unless said.
    #[arg(long, value_name = "N")]
    pub(crate) lanes: Option<u32>,
    /// Log entries for each of them, of 48 bytes; a transaction takes half of them at most. After the size unless said.
    #[arg(long, value_name = "N")]
    pub(crate) lane_entries: Option<u32>,
    /// The unit in which space is handed to threads, a power of two. After the size unless said.
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk_bytes: Option<Size>,
}

#[derive(Debug, Args)]
pub(crate) struct Map {
    /// The file.
    pub(crate) file: PathBuf,
    /// Where to write the picture.
    #[arg(long, short, value_name = "SVG")]
    pub(crate) output: PathBuf,
    /// How often each line was written, for a second picture: `{"line_bytes":64,"writes":[[OFFSET,COUNT],...]}`.
    #[arg(long, value_name = "JSON")]
    pub(crate) wear: Option<PathBuf>,
}
