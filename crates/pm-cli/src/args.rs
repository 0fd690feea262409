//! The command line.

use crate::object::ObjectCommand;
use crate::store::StoreCommand;
use clap::{Args, Parser, Subcommand};
use pm_cli_common::{Docs, Size};
use std::path::PathBuf;

/// The end of `--help`.
const EXAMPLES: &str = "\
Examples:
  pm heap create data.pm --size 64M              create a pool with an empty heap in it
  pm heap check data.pm                          verify it; changes nothing
  pm heap repair data.pm                         repair corruption, after asking
  pm heap map data.pm -o data.svg                draw allocated and free space
  pm pool info data.pm                           identity, header, roots
  pm store create data.pm --size 64M             create a pool with an empty key/value store
  pm store load data.pm stars stars.csv          insert its rows into the table `stars`
  pm store scan data.pm stars --from m --to n    print the rows from key m up to key n
  pm object import files.pmo docs                make an object of each file in the directory `docs`
  pm object get files.pmo intro.md               print the one named `intro.md`";

/// Inspects and repairs pools and heaps of persistent memory, and reads and writes key/value stores and named objects.
///
/// A pool is a file, or a device-dax, with a checksummed header at its start, a backup of it at its end, and a directory of
/// roots. A heap is a pool with pm-alloc's logs and blocks. A store is a heap with pm-btree's tables. Objects are in a heap with a store of their names.
///
/// Only `create` and `repair` change files, and `put`, `remove` and `load` of a store, and `import`, `put`, `rm` and `mv` of objects. No other program may have the file open for writing at the same time.
///
/// Sizes are numbers with the suffix K, M, G or T, powers of 1024, or numbers of bytes.
///
/// Exit status: 0 for success, 1 for a failure, 2 for a wrong command line, 3 when `check` found corruption, or `repair` left some.
#[derive(Debug, Parser)]
#[command(name = "pm", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print JSON, one object a line.
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
    /// Stores in heaps: tables of keys and values.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Named objects in heaps.
    #[command(subcommand)]
    Object(ObjectCommand),
    #[command(flatten)]
    Docs(Docs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Print the pool's identity, medium, header and roots.
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
    /// Print the heap's layout, its use, and what recovery on the next open will do.
    Info(Target),
    /// Verify every header, log entry and root, as they are after recovery. Changes nothing: the file is not recovered.
    Check(Target),
    /// Recover the heap, and replace corrupted headers; the blocks below them are lost.
    Repair(HeapRepair),
    /// Draw the heap: allocated, free and lost space, and how often lines were written.
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
    /// Repair without asking.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HeapRepair {
    #[command(flatten)]
    pub(crate) repair: Repair,
    /// Also free corrupted lines of the directory of roots, and repair what else is corrupted: what their roots led to, such as a file system, is not
    /// found any more. Without this option nothing is stored if there is such a line.
    #[arg(long)]
    pub(crate) discard_roots: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The file, which must not exist.
    pub(crate) file: PathBuf,
    /// Its size.
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Size,
    /// The number of transactions that can commit at the same time, 1 to 1,024. Default: by the size.
    #[arg(long, value_name = "N")]
    pub(crate) lanes: Option<u32>,
    /// The log entries of each lane, of 48 bytes; a transaction uses half of them at most. Default: by the size.
    #[arg(long, value_name = "N")]
    pub(crate) lane_entries: Option<u32>,
    /// The unit in which space is assigned to threads, a power of two. Default: by the size.
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk_bytes: Option<Size>,
}

#[derive(Debug, Args)]
pub(crate) struct Map {
    /// The file.
    pub(crate) file: PathBuf,
    /// The picture's file.
    #[arg(long, short, value_name = "SVG")]
    pub(crate) output: PathBuf,
    /// The writes to each line, for a second picture: `{"line_bytes":64,"writes":[[OFFSET,COUNT],...]}`.
    #[arg(long, value_name = "JSON")]
    pub(crate) wear: Option<PathBuf>,
}
