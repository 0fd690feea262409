//! Places in source code, of this program or of a trace read from a file; and their numbers in a trace.

use crate::line::LineMap;
use core::fmt;
use indexmap::IndexSet;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;

/// A place in source code: file, line and column, as the compiler names them.
///
/// Cloning is as cheap as for a reference.
#[derive(Clone)]
pub struct SourceLocation {
    file: File,
    line: u32,
    column: u32,
}

#[derive(Clone)]
enum File {
    /// Of this program.
    Compiled(&'static str),
    /// Of another program.
    Read(Arc<str>),
}

impl SourceLocation {
    /// A place in another program. Lines and columns count from 1; 0 stands for unknown.
    #[must_use]
    pub fn new(file: impl Into<Arc<str>>, line: u32, column: u32) -> Self {
        Self { file: File::Read(file.into()), line, column }
    }

    /// The name of the file, as it was passed to the compiler.
    #[must_use]
    pub fn file(&self) -> &str {
        match &self.file {
            File::Compiled(name) => name,
            File::Read(name) => name,
        }
    }

    /// The line, from 1; 0 if unknown.
    #[must_use]
    pub const fn line(&self) -> u32 {
        self.line
    }

    /// The column, from 1; 0 if unknown.
    #[must_use]
    pub const fn column(&self) -> u32 {
        self.column
    }

    fn key(&self) -> (&str, u32, u32) {
        (self.file(), self.line, self.column)
    }
}

impl From<&'static Location<'static>> for SourceLocation {
    fn from(location: &'static Location<'static>) -> Self {
        Self { file: File::Compiled(location.file()), line: location.line(), column: location.column() }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file())?;
        match (self.line, self.column) {
            (0, _) => Ok(()),
            (line, 0) => write!(f, ":{line}"),
            (line, column) => write!(f, ":{line}:{column}"),
        }
    }
}

impl fmt::Debug for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for SourceLocation {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for SourceLocation {}

impl PartialOrd for SourceLocation {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SourceLocation {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for SourceLocation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// A place in the source, within one [`Trace`](crate::Trace).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationId(pub(crate) u32);

impl LocationId {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The places in the source that a trace names, numbered, so that an event names its place in four bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locations {
    list: IndexSet<SourceLocation>,
    /// The same by the address of the compiler's record: the key that every store and flush looks up.
    by_address: LineMap<LocationId>,
}

impl Locations {
    /// The number of a place in this program.
    pub(crate) fn of_caller(&mut self, location: &'static Location<'static>) -> LocationId {
        if let Some(known) = self.known(location) {
            return known;
        }
        let id = self.intern(location.into());
        self.by_address.insert(address(location), id);
        id
    }

    /// The same, of a place that was looked up before.
    pub(crate) fn known(&self, location: &'static Location<'static>) -> Option<LocationId> {
        self.by_address.get(&address(location)).copied()
    }

    /// The number of a place.
    ///
    /// # Panics
    /// When there are more places than 32 bits can count.
    pub(crate) fn intern(&mut self, location: SourceLocation) -> LocationId {
        let (index, _) = self.list.insert_full(location);
        LocationId(u32::try_from(index).expect("fewer places than 32 bits can count"))
    }

    pub(crate) fn get(&self, id: LocationId) -> &SourceLocation {
        &self.list[id.index()]
    }

    pub(crate) const fn all(&self) -> &IndexSet<SourceLocation> {
        &self.list
    }
}

fn address(location: &'static Location<'static>) -> u64 {
    core::ptr::from_ref(location).addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_read_from_a_file_equals_the_compiled_one() {
        let here = Location::caller();
        let compiled = SourceLocation::from(here);
        let read = SourceLocation::new(here.file(), here.line(), here.column());
        assert_eq!(compiled, read);
        assert_eq!(compiled.to_string(), here.to_string());
        assert_eq!(SourceLocation::new("a.c", 0, 0).to_string(), "a.c");
        assert_eq!(SourceLocation::new("a.c", 7, 0).to_string(), "a.c:7");
    }
}
