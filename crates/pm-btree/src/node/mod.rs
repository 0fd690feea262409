//! Nodes: keys, the bytes of entries and headers, and their state in DRAM. Nothing here knows which tree a node belongs to, or what changes it.

mod bytes;
mod entry;
mod frame;
mod header;
mod inner;
mod key;
mod separator;

pub(crate) use bytes::Bytes;
pub(crate) use entry::{
    Commit, Entry, INLINE_BYTES, Kind, RECORD_BYTES_MAX, RECORD_LENGTHS_BYTES, RecordRef, Stamp, empty_slot,
    entry_offset, held_entry, inline_lengths, is_slot_empty, node_seed,
};
pub(crate) use frame::{
    FRAMES_PER_EXTENT, Frame, FrameId, FrameLock, Frames, Snapshot, flush_owed, line_mate, lines_of, slots_of,
};
pub(crate) use header::{TreeId, Verified, low_of, store_header, store_used_lines};
pub(crate) use inner::{FANOUT_MAX, Inner, InnerNodes, Kid};
pub(crate) use key::{OwnedKey, SearchKey, head_of, separator};
pub(crate) use separator::Separator;
