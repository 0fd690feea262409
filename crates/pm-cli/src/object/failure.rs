//! Errors of objects, with their path and with help.

use crate::error::AtPath;
use miette::Diagnostic;
use pm_btree::OpenError as StoreError;
use pm_objects::{ObjectError, OpenError};
use std::fmt;
use std::path::{Path, PathBuf};

/// An error of the objects at a path.
#[derive(Debug)]
pub(crate) struct Failure {
    path: PathBuf,
    /// The name of the object, if the error is that of one.
    name: Option<String>,
    error: Error,
}

#[derive(Debug)]
enum Error {
    /// The pool or the heap.
    Heap(Box<AtPath>),
    Open(Box<OpenError>),
    Object(Box<ObjectError>),
}

impl Failure {
    /// For `map_err`: the pool could not be created, opened, grown or closed.
    pub(crate) fn open(path: &Path) -> impl FnOnce(OpenError) -> Self {
        let path = path.to_path_buf();
        move |error| {
            let error = match error {
                OpenError::Store(StoreError::Heap(error)) => Error::Heap(Box::new(AtPath::new(&path)(error))),
                error => Error::Open(Box::new(error)),
            };
            Self { path, name: None, error }
        }
    }

    /// For `map_err`: an error of the object with this name.
    pub(crate) fn of(path: &Path, name: &str) -> impl FnOnce(ObjectError) -> Self {
        let (path, name) = (path.to_path_buf(), Some(name.to_owned()));
        move |error| Self { path, name, error: Error::Object(Box::new(error)) }
    }

    /// For `map_err`: an error of all objects.
    pub(crate) fn of_all(path: &Path) -> impl FnOnce(ObjectError) -> Self {
        let path = path.to_path_buf();
        move |error| Self { path, name: None, error: Error::Object(Box::new(error)) }
    }

    /// Whether there was no room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(&self.error, Error::Object(error) if matches!(**error, ObjectError::Full))
    }

    /// The message, if it is corruption.
    pub(crate) fn corruption(&self) -> Option<String> {
        match &self.error {
            Error::Heap(error) => error.corruption(),
            Error::Open(error) => match &**error {
                OpenError::Object(error) => of_object(error),
                OpenError::Store(StoreError::Corrupted(corruption)) => Some(corruption.to_string()),
                _ => None,
            },
            Error::Object(error) => of_object(error),
        }
    }
}

fn of_object(error: &ObjectError) -> Option<String> {
    match error {
        ObjectError::Corrupted(corruption) => Some(corruption.to_string()),
        ObjectError::NamesRead(pm_btree::ReadError::Corrupted(corruption))
        | ObjectError::NamesWrite(pm_btree::WriteError::Corrupted(corruption)) => {
            Some(corruption.to_string())
        }
        _ => None,
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.error {
            Error::Object(error) => error.source(),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Error::Heap(error) = &self.error {
            return error.fmt(f);
        }
        write!(f, "{}: ", self.path.display())?;
        if let Some(name) = &self.name {
            write!(f, "object {name:?}: ")?;
        }
        match &self.error {
            Error::Heap(error) => error.fmt(f),
            Error::Open(error) => error.fmt(f),
            Error::Object(error) => error.fmt(f),
        }
    }
}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let path = self.path.display();
        let help = match &self.error {
            Error::Heap(error) if error.is_not_found() => {
                format!("`pm object create {path} --size 64M` makes one, and `import` does")
            }
            Error::Heap(error) => return error.help(),
            Error::Open(error) => match &**error {
                OpenError::NoObjects | OpenError::Store(StoreError::NotAStore) => {
                    format!("`pm heap info {path}` prints the contents of the heap")
                }
                OpenError::Version { .. } | OpenError::UnknownFeatures { .. } => {
                    "the pm of the version that made it can open it".to_owned()
                }
                OpenError::Layout { .. } | OpenError::Store(StoreError::Layout { .. }) => {
                    "choose a greater --size".to_owned()
                }
                _ => return None,
            },
            Error::Object(error) => match &**error {
                ObjectError::NotFound => format!("`pm object ls {path}` prints all names"),
                ObjectError::Full => "delete objects, or import into a file that may grow".to_owned(),
                _ if self.corruption().is_some() => {
                    format!("`pm object check {path}` looks for all corruption")
                }
                _ => return None,
            },
        };
        Some(Box::new(help))
    }
}
