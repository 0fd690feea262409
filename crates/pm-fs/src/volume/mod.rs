//! The storage of a file system: the heap with the metadata, the pages with the data, and the checksums of words.

pub(crate) mod options;
pub(crate) mod pages;
pub(crate) mod seal;
#[expect(clippy::module_inception, reason = "the folder's main type")]
mod volume;

pub(crate) use volume::{Change, Source, Volume};
