//! The log: redo entries with LSNs in a ring for each lane, and undo entries for long writes in place. It knows nothing of
//! blocks. `docs/adr/0007-one-fence-per-transaction.md` says why it is right.

mod checkpoint;
mod commit;
mod entry;
mod error;
mod floor;
mod handle;
mod home;
mod in_place;
mod inspect;
mod lane;
mod recover;
mod rings;
mod unsettled;
mod writes;

#[cfg(test)]
mod tests;

pub(crate) use commit::LaneGuard;
pub use error::{CommitError, RecoverError};
pub(crate) use handle::Log;
pub(crate) use in_place::{store_u64, store_u64_pair};
pub use inspect::{Inspection, LaneInspection};
pub use recover::Recovery;
#[cfg(test)]
pub(crate) use recover::recover;
pub(crate) use recover::{OnCorruption, Replayed, format};
pub(crate) use writes::Writes;
