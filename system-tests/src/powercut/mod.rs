//! Tests that acknowledged writes survive a power cut.
//!
//! A writer in the guest (`src/bin/power-cut-writer.rs`) repeatedly overwrites *slots*: 4 KiB blocks of a device, or files of a file system. Each write
//! has a [`Sequence`] number and consists of [`Block`]s that contain their place. The writer reports each acknowledged write before it begins the next.
//! After the cut a reader reports the content of each slot, and the host's [`Ledger`] compares: each slot must hold its last acknowledged write. The one
//! write that each writer had in flight may be present, missing, or torn.

mod block;
mod ledger;
mod slots;

pub use block::{BLOCK_BYTES, Block, BlockState, Sequence};
pub use ledger::{Ledger, Tally};
pub use slots::{DeviceSlots, FileSlots, Held, Slots};
