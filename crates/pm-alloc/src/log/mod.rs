//! The log: redo entries with LSNs in a ring for each lane, and undo entries for long in-place writes. It knows the format of block headers, but not
//! the allocator. `docs/adr/0007-one-fence-per-transaction.md` explains why it is correct.

mod checkpoint;
mod commit;
mod entry;
mod error;
mod floor;
mod handle;
mod inspect;
mod recover;
mod rings;
mod writes;

#[cfg(test)]
mod tests;

pub(crate) use commit::{LaneGuard, store_u64, store_u64_pair};
pub use error::{CommitError, RecoverError};
pub(crate) use handle::Log;
pub use handle::PoisoningPmem;
pub use inspect::{Inspection, LaneInspection};
pub use recover::Recovery;
#[cfg(test)]
pub(crate) use recover::recover;
pub(crate) use recover::{OnCorruption, Replayed, format};
pub(crate) use writes::Writes;
