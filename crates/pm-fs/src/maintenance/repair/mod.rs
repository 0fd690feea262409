//! Repair of a corrupted file system: what cannot be verified is removed, and what has lost its name gets one in `lost+found`.
//!
//! First the contents of each inode are verified: afterwards each block and each page has one user. Then the names: afterwards each inode has as many
//! names as it counts. At last blocks that nothing uses are freed. Every step is a transaction that leaves less to repair, so that a crash only means
//! to begin again.

mod contents;
mod dir_block;
mod names;
mod progress;
mod run;

pub use progress::RepairReport;
pub(crate) use run::{blocks, repair};
