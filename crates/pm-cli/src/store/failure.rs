//! Errors of a store, with their path and with help.

use super::kind::{Kind, TextError};
use crate::error::AtPath;
use miette::Diagnostic;
use pm_btree::{OpenError, ReadError, TableError, WriteError};
use std::fmt;
use std::path::{Path, PathBuf};

/// An error of the store at a path.
#[derive(Debug)]
pub(crate) struct Failure {
    path: PathBuf,
    error: StoreError,
}

/// Why a command fails.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// The pool or the heap.
    Heap(AtPath),
    Open(OpenError),
    Table(TableError),
    Read(ReadError),
    Write(WriteError),
    /// A key or value that is none of its type.
    Text(TextError),
    NoTable(String),
    NoKey {
        table: String,
        key: String,
    },
    /// The table has types that the command cannot read.
    ForeignTypes {
        table: String,
        types: [String; 2],
    },
    /// The table has other types than the command line.
    OtherTypes {
        table: String,
        stored: [Kind; 2],
        wanted: [Kind; 2],
    },
}

macro_rules! from {
    ($($variant:ident($error:ty))+) => {$(
        impl From<$error> for StoreError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    )+};
}
from! { Heap(AtPath) Table(TableError) Read(ReadError) Write(WriteError) Text(TextError) }

impl Failure {
    /// For `map_err`.
    pub(crate) fn new<E: Into<StoreError>>(path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_path_buf();
        move |error| Self { path, error: error.into() }
    }

    /// For `map_err`: the store could not be created, opened or closed.
    pub(crate) fn open(path: &Path) -> impl FnOnce(OpenError) -> Self {
        let path = path.to_path_buf();
        move |error| {
            let error = match error {
                OpenError::Heap(error) => StoreError::Heap(AtPath::new(&path)(error)),
                error => StoreError::Open(error),
            };
            Self { path, error }
        }
    }

    /// The message, if it is corruption.
    pub(crate) fn corruption(&self) -> Option<String> {
        match &self.error {
            StoreError::Heap(error) => error.corruption(),
            StoreError::Open(OpenError::Corrupted(corruption))
            | StoreError::Table(
                TableError::Corrupted(corruption)
                | TableError::Read(ReadError::Corrupted(corruption))
                | TableError::Write(WriteError::Corrupted(corruption)),
            )
            | StoreError::Read(ReadError::Corrupted(corruption))
            | StoreError::Write(WriteError::Corrupted(corruption)) => Some(corruption.to_string()),
            // The types are those with which the table was written.
            StoreError::Read(ReadError::Decode(error)) => Some(format!("a record has {error}")),
            _ => None,
        }
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let StoreError::Heap(error) = &self.error {
            return error.fmt(f);
        }
        write!(f, "{}: ", self.path.display())?;
        match &self.error {
            StoreError::Heap(error) => error.fmt(f),
            StoreError::Open(error) => error.fmt(f),
            StoreError::Table(error) => error.fmt(f),
            StoreError::Read(error) => error.fmt(f),
            StoreError::Write(error) => error.fmt(f),
            StoreError::Text(error) => error.fmt(f),
            StoreError::NoTable(table) => write!(f, "there is no table {table:?}"),
            StoreError::NoKey { table, key } => write!(f, "table {table:?} has no key {key:?}"),
            StoreError::ForeignTypes { table, types: [key, value] } => {
                write!(f, "table {table:?} maps {key} to {value}, which this command cannot read")
            }
            StoreError::OtherTypes { table, stored, wanted } => {
                let [stored, wanted] = [stored, wanted].map(|types| types.map(Kind::type_name).join(" to "));
                write!(f, "table {table:?} maps {stored}, not {wanted}")
            }
        }
    }
}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let path = self.path.display();
        let help = match &self.error {
            StoreError::Heap(error) if error.is_not_found() => {
                format!("`pm store create {path} --size 64M` makes one")
            }
            StoreError::Heap(error) => return error.help(),
            StoreError::Text(error) => return error.help(),
            StoreError::Open(OpenError::NotAStore) => {
                format!("`pm heap info {path}` prints the contents of the heap")
            }
            StoreError::Open(OpenError::Version { .. } | OpenError::UnknownFeatures { .. }) => {
                "the pm of the version that made it can open it".to_owned()
            }
            StoreError::Open(OpenError::Layout { .. }) => "choose a greater --size".to_owned(),
            StoreError::NoTable(_) => {
                format!("`pm store stat {path}` lists the tables; `put` and `load` create one")
            }
            StoreError::ForeignTypes { .. } => {
                "only u64, i64, str and bytes can be read here; the program that made the table can read it"
                    .to_owned()
            }
            StoreError::OtherTypes { .. } => {
                "omit --key and --value: the types of a table never change".to_owned()
            }
            StoreError::Write(WriteError::Full) => {
                format!("remove keys, or make it larger: `pm store grow {path} --size SIZE`")
            }
            _ if self.corruption().is_some() => format!("`pm store check {path}` looks for all corruption"),
            _ => return None,
        };
        Some(Box::new(help))
    }
}
