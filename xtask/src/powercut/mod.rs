//! What a power cut must not take away: every write that was acknowledged before it.
//!
//! A writer in the guest (`src/bin/power-cut-writer.rs`) overwrites *slots*, again and again: 4 KiB blocks of a
//! device, or files of a file system. Each write has a [`Sequence`] number and is [`Block`]s that prove their
//! own place and wholeness. When a write is acknowledged the writer reports so, and only then begins its next.
//! After the cut a reader says what each slot holds, and the host's [`Ledger`] compares: each slot must hold
//! what was last acknowledged for it. Only the one write that each writer was in the middle of may be there,
//! be missing, or be torn.

mod block;
mod ledger;
mod slots;

pub use block::{BLOCK_BYTES, Block, BlockState, Sequence};
pub use ledger::{Ledger, Tally};
pub use slots::{DeviceSlots, FileSlots, Held, Slots};
