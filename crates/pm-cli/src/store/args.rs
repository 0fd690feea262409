//! The command line of `pm store`.

use super::kind::Kind;
use clap::{Args, Subcommand, ValueEnum};
use pm_cli_common::Size;
use std::path::{Path, PathBuf};

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
