//! The log: redo entries with stamps in a ring for each lane, and undo entries for long writes in place. It knows nothing of
//! blocks. `docs/adr/0007-one-fence-per-transaction.md` says why it is right.

mod commit;
mod entry;
mod error;
mod floor;
mod home;
mod horizon;
mod inspect;
mod lane;
mod pack;
mod raise;
mod recent;
mod recover;
mod replay;
mod rings;
mod shared;
mod undo;
mod unsettled;
mod writes;

#[cfg(test)]
mod tests;

pub use error::{CommitError, RecoverError};
pub use inspect::{Inspection, LaneInspection};
pub(crate) use lane::LaneGuard;
pub(crate) use recover::OnCorruption;
pub use recover::Recovery;
pub(crate) use shared::Log;
pub(crate) use writes::Writes;
