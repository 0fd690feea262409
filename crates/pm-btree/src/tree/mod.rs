//! A tree: the way to the leaf of a key, and frames that are filled when they are first used.

mod change;
mod ends;
mod fill;
mod hints;
mod index;
mod split_point;
#[expect(clippy::module_inception, reason = "the folder is named after its main type")]
mod tree;
mod verify;

pub(crate) use change::{Expected, Outcome, verify_slots};
pub(crate) use ends::low_of;
pub(crate) use split_point::{batch_split_point, sorted_entries};
pub(crate) use tree::{Content, Posting, Tree, offset_in_entry, owed_records, settle_owed};
