//! Conditional changes: what the entry of a key must be, what came of a change, and the new value of an update.

use crate::bytes::Bytes;
use crate::core::Core;
use crate::entry::{Entry, entry_offset, held_entry};
use crate::error::{Corruption, CorruptionKind, EncodeError};
use crate::frame::{Frame, FrameLock, slots_of};
use crate::guard::Guard;
use crate::types::Value;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// A value for [`Table::update`](crate::Table::update), encoded.
pub struct Encoded<V: Value> {
    pub(crate) bytes: Result<Vec<u8>, EncodeError>,
    of: PhantomData<fn() -> V>,
}

impl<V: Value> Encoded<V> {
    /// Encodes a value. If it has no encoding, the update returns the error.
    #[must_use]
    pub fn new(value: V::View<'_>) -> Self {
        let mut bytes = Vec::new();
        let encoded = V::encode(value, &mut bytes);
        Self { bytes: encoded.map(|()| bytes), of: PhantomData }
    }
}

impl<V: Value> fmt::Debug for Encoded<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Encoded").field(&self.bytes).finish()
    }
}

/// What came of [`Table::compare_and_swap`](crate::Table::compare_and_swap).
#[derive(Clone, Debug)]
#[must_use = "if the value was not the expected one, nothing was changed"]
pub enum Swap<V: Value> {
    /// The value was the expected one, and the new one is durable.
    Swapped,
    /// The value was this one, and not the expected one: nothing was changed. `None` if the key was absent.
    Unequal(Option<Guard<V>>),
}

impl<V: Value> Swap<V> {
    /// Whether the new value is durable.
    #[must_use]
    pub const fn is_swapped(&self) -> bool {
        matches!(self, Self::Swapped)
    }
}

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
        core: &Core<P>,
        is_word: bool,
        leaf: &FrameLock<'_>,
        found: Option<&(usize, Entry)>,
    ) -> Result<Option<Outcome>, Corruption> {
        let Self::Value(expected) = self else { return Ok(None) };
        if core.verifies_reads {
            match found {
                Some((slot, _)) => verify_slots(&core.pmem(), is_word, leaf, 1 << slot)?,
                // One of the other entries may be the one that was not found.
                None => verify_slots(&core.pmem(), is_word, leaf, leaf.live.load(Ordering::Relaxed))?,
            }
        }
        let value = found.map(|(_, entry)| entry.value(&core.pmem(), is_word));
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
