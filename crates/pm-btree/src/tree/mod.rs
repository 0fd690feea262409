//! A tree: the way to the leaf of a key, and frames that are filled when they are first used.

mod emptied;
mod ends;
mod fill;
mod hints;
mod index;
#[expect(clippy::module_inception, reason = "the folder is named after its main type")]
mod tree;
mod verify;

pub(crate) use index::Writers;
pub(crate) use tree::Tree;
pub(crate) use verify::{has_broken_seal, verify_range, verify_slots};
