//! The command line of `pm store`.

use super::kind::Kind;
use clap::{Args, Subcommand, ValueEnum};
use pm_cli_common::Size;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Create a file with an empty store in it.
    Create(Sized),
    /// Insert a key, or replace its value. Durable when the command ends.
    Put(Put),
    /// Print the value of a key.
    Get(Key),
    /// Remove a key. Durable when the command ends.
    Remove(Key),
    /// Print keys and values in the order of the keys.
    Scan(Scan),
    /// Insert the rows of a CSV or JSON lines file. Reports how many lines are durable.
    Load(Load),
    /// Write all keys and values as CSV or JSON lines, which `load` reads.
    Dump(Dump),
    /// Grow the file and the store in it. A crash leaves the old size or the new one.
    Grow(Sized),
    /// Release the nodes that removals have left empty. A crash loses no key.
    Compact(Target),
    /// Print the tables, their types and their sizes.
    Stat(Target),
    /// Verify the pool, the heap and the store, as they are after recovery. Changes nothing.
    Check(Target),
    /// Serve a store as a node of a cluster that replicates it, to Redis clients.
    Serve(Serve),
    /// Show or change the members of a cluster.
    Cluster(Cluster),
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The file, or device-dax.
    pub(crate) file: PathBuf,
}

/// A file and its size after the command.
#[derive(Debug, Args)]
pub(crate) struct Sized {
    /// The file. `create` makes it: then it must not exist.
    pub(crate) file: PathBuf,
    /// Its size after the command.
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Size,
}

/// The types of a table that the command creates. A table that exists must have them.
#[derive(Debug, Args)]
pub(crate) struct Types {
    /// The type of the keys of a new table. Default: str.
    #[arg(long = "key", value_name = "TYPE")]
    pub(crate) key_type: Option<Kind>,
    /// The type of the values of a new table. Default: str.
    #[arg(long = "value", value_name = "TYPE")]
    pub(crate) value_type: Option<Kind>,
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The file.
    pub(crate) file: PathBuf,
    /// The table, which is created if it does not exist.
    pub(crate) table: String,
    /// The key.
    #[arg(allow_negative_numbers = true)]
    pub(crate) key: String,
    /// The value.
    #[arg(allow_negative_numbers = true)]
    pub(crate) value: String,
    #[command(flatten)]
    pub(crate) types: Types,
}

#[derive(Debug, Args)]
pub(crate) struct Key {
    /// The file.
    pub(crate) file: PathBuf,
    /// The table.
    pub(crate) table: String,
    /// The key.
    #[arg(allow_negative_numbers = true)]
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct Scan {
    /// The file.
    pub(crate) file: PathBuf,
    /// The table.
    pub(crate) table: String,
    /// The first key.
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) from: Option<String>,
    /// The key before which the scan ends.
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) to: Option<String>,
    /// The greatest number of keys.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Print the last key first.
    #[arg(long)]
    pub(crate) reverse: bool,
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct Load {
    /// The file.
    pub(crate) file: PathBuf,
    /// The table, which is created if it does not exist. Without it, each row names its table, as in a dump of all tables.
    pub(crate) table: Option<String>,
    /// The rows; `-` for standard input.
    pub(crate) input: PathBuf,
    /// The format of the rows. Default: by the name of INPUT: .csv, .jsonl or .ndjson.
    #[arg(long)]
    pub(crate) format: Option<Format>,
    /// The first row of the CSV has the names of the columns.
    #[arg(long)]
    pub(crate) header: bool,
    /// The column with the keys: its number from 1, or its name. Default: the first; in JSON lines the field `key`.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) key_column: Option<String>,
    /// The column with the values: its number from 1, or its name. Default: all other columns, as CSV; in JSON lines the field `value`.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) value_column: Option<String>,
    /// Make so many rows durable together, at two fences a group in place of one a row. A crash loses rows that no report has named as durable, and keeps a
    /// prefix of the input. Rows of an incomplete group wait for more input, or its end.
    #[arg(long, value_name = "ROWS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) group: u32,
    #[command(flatten)]
    pub(crate) types: Types,
}

#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// The file.
    pub(crate) file: PathBuf,
    /// The table. Without it all tables are written, and each row names its table.
    pub(crate) table: Option<String>,
    /// The output. Default: standard output.
    #[arg(long, short, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// The format of the rows. Default: by the name of OUT; without one, CSV, or JSON lines with --json.
    #[arg(long)]
    pub(crate) format: Option<Format>,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The file, which `create` has made. It belongs to this node from then on.
    pub(crate) file: PathBuf,
    /// The number of this node in the cluster. A number is never used again with another file.
    #[arg(long)]
    pub(crate) id: u64,
    /// All nodes with their addresses, for clients and for the other nodes.
    #[arg(long, value_name = "ID=ADDRESS", value_delimiter = ',', required = true)]
    pub(crate) cluster: Vec<Node>,
    /// Wait until the cluster adds this node, with `pm store cluster add`: then --cluster needs only its own address.
    #[arg(long)]
    pub(crate) join: bool,
    /// The name of the cluster. Nodes of other clusters are refused.
    #[arg(long, default_value = "pm")]
    pub(crate) name: String,
    /// A file with a password, which clients and the other nodes must have. Needed for addresses that other machines can reach.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// An address for Prometheus, which reads http://ADDRESS/metrics. It needs no password.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<String>,
    /// The entries of the log that are kept for nodes that lag behind, in at most an eighth of the store. A node that lags further receives the whole state.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) log_entries: u64,
    /// The greatest number of clients at a time.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) clients: usize,
}

/// A cluster, and what to do with it.
#[derive(Debug, Args)]
pub(crate) struct Cluster {
    /// The address of one of its nodes.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) at: String,
    /// A file with the password of the cluster.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Print the leader, and the nodes with what they lack of the log.
    Status,
    /// Add a node, which is served with --join. Returns when it has the log, and votes.
    Add {
        /// The new node and its address.
        #[arg(value_name = "ID=ADDRESS")]
        node: Node,
    },
    /// Remove a node. Returns when the others no longer need it.
    Remove {
        /// The number of the node.
        id: u64,
    },
}

/// A node of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) address: String,
}

impl FromStr for Node {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, address) =
            text.split_once('=').ok_or("a node is written ID=ADDRESS:PORT, such as 1=127.0.0.1:7001")?;
        let id = id.parse().map_err(|_| "the id of a node is a number")?;
        if address.is_empty() {
            return Err("the address is missing");
        }
        Ok(Self { id, address: address.to_owned() })
    }
}

/// The format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated values.
    Csv,
    /// A JSON object a line.
    Jsonl,
}

impl Format {
    /// The format of a file, by the extension of its name.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        }
    }
}
