//! Conditional changes: what the entry of a key must be, and what came of a change.

use crate::error::{Corruption, CorruptionKind};
use crate::node::{Bytes, Entry, Frame, FrameLock, entry_offset, held_entry, slots_of};
use crate::session::Session;
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// What the value of a key must be, for a change to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected<'a> {
    /// Any value, or none.
    Any,
    /// This value, encoded; none, if the key must be absent.
    Value(Option<&'a [u8]>),
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is durable.
    Changed {
        /// Whether the key had a value.
        was_present: bool,
    },
    /// The value, encoded, is not the expected one. Nothing was changed.
    Unequal(Option<Bytes>),
}

impl Expected<'_> {
    /// The outcome, if the entry of the key, which is in a locked leaf, is not as expected.
    pub(crate) fn refusal<P: Pmem>(
        self,
        session: &Session<P>,
        is_word: bool,
        leaf: &FrameLock<'_>,
        found: Option<&(usize, Entry)>,
    ) -> Result<Option<Outcome>, Corruption> {
        let Self::Value(expected) = self else { return Ok(None) };
        if session.verifies_reads {
            match found {
                Some((slot, _)) => verify_slots(&session.pmem(), is_word, leaf, 1 << slot)?,
                // One of the other entries may be the one that was not found.
                None => verify_slots(&session.pmem(), is_word, leaf, leaf.live.load(Ordering::Relaxed))?,
            }
        }
        let value = found.map(|(_, entry)| entry.value(&session.pmem(), is_word));
        let is_expected = value.as_ref().map(Bytes::as_slice) == expected;
        Ok((!is_expected).then_some(Outcome::Unequal(value)))
    }
}

/// Verifies the checksums of entries of a locked leaf, and of their records.
pub(crate) fn verify_slots<P: Pmem>(
    pmem: &P,
    is_word: bool,
    leaf: &Frame,
    slots: u64,
) -> Result<(), Corruption> {
    for slot in slots_of(slots) {
        let place = entry_offset(leaf.node(), slot);
        let (entry, seal) = Entry::load(pmem, place);
        if entry.seal(leaf.seed()) != seal {
            return Err(held_entry(leaf.node(), 1 << slot));
        }
        if !entry.is_record_intact(pmem, is_word) {
            return Err(Corruption::new(place, CorruptionKind::Record));
        }
    }
    Ok(())
}
