//! The change of one key: what its entry must be, what is written, and what came of it.

use crate::error::{Corruption, DecodeError, WriteError};
use crate::node::{
    Bytes, Commit, Entry, FrameLock, INLINE_BYTES, Kind, RECORD_BYTES_MAX, RecordRef, SearchKey,
    inline_lengths,
};
use crate::session::{Reserved, Session, Supply};
use crate::tree::verify_slots;
use core::sync::atomic::Ordering;
use pm_core::{Pmem, crc32c_bytes};

/// What the value of a key must be, for a change to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected<'a> {
    /// Any value, or none.
    Any,
    /// Any value that this function accepts, or none. The outcome has the value.
    Returned(fn(&[u8]) -> Result<(), DecodeError>),
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
    /// It is durable, and has replaced or removed this value, encoded; `None` if the key was absent.
    Replaced(Option<Bytes>),
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
        if matches!(self, Self::Any) {
            return Ok(None);
        }
        if session.verifies_reads {
            match found {
                Some((slot, _)) => verify_slots(&session.pmem(), is_word, leaf, 1 << slot)?,
                // One of the other entries may be the one that was not found.
                None => verify_slots(&session.pmem(), is_word, leaf, leaf.live.load(Ordering::Relaxed))?,
            }
        }
        let Self::Value(expected) = self else { return Ok(None) };
        let value = found.map(|(_, entry)| entry.value(&session.pmem(), is_word));
        let is_expected = value.as_ref().map(Bytes::as_slice) == expected;
        Ok((!is_expected).then_some(Outcome::Unequal(value)))
    }

    /// The outcome, if the change of the entry, which is in a locked leaf, succeeds.
    #[inline]
    pub(crate) fn success<P: Pmem>(
        self,
        session: &Session<P>,
        is_word: bool,
        found: Option<&(usize, Entry)>,
    ) -> Result<Outcome, DecodeError> {
        match self {
            Self::Returned(check) => returned(check, session, is_word, found),
            _ => Ok(Outcome::Changed { was_present: found.is_some() }),
        }
    }
}

#[cold]
fn returned<P: Pmem>(
    check: fn(&[u8]) -> Result<(), DecodeError>,
    session: &Session<P>,
    is_word: bool,
    found: Option<&(usize, Entry)>,
) -> Result<Outcome, DecodeError> {
    let value = found.map(|(_, entry)| entry.value(&session.pmem(), is_word));
    value.as_ref().map_or(Ok(()), |value| check(value.as_slice()))?;
    Ok(Outcome::Replaced(value))
}

/// The content of a new entry: the value itself, or a record for it.
#[derive(Debug)]
pub(crate) struct Content<'s> {
    pub(crate) payload: u64,
    pub(crate) low: u32,
    pub(crate) record: Option<Reserved<'s>>,
}

impl<'s> Content<'s> {
    /// Takes space for a value, and computes what the entry says about it. Nothing is stored.
    pub(crate) fn reserve<P: Pmem>(
        supply: &Supply<'s, P>,
        is_word: bool,
        key: &SearchKey<'_>,
        value: &[u8],
        record: &mut Vec<u8>,
    ) -> Result<Self, WriteError> {
        if value.len() <= INLINE_BYTES && key.bytes().len() <= INLINE_BYTES {
            let mut payload = [0; INLINE_BYTES];
            payload[..value.len()].copy_from_slice(value);
            let low = inline_lengths(key.bytes().len(), value.len());
            return Ok(Self { payload: u64::from_le_bytes(payload), low, record: None });
        }
        let too_long = |len_bytes| WriteError::TooLong { len_bytes, max_bytes: RECORD_BYTES_MAX };
        if !is_word {
            let len = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| too_long(bytes.len() as u64));
            record.clear();
            record.extend_from_slice(&len(key.bytes())?.to_le_bytes());
            record.extend_from_slice(&len(value)?.to_le_bytes());
            record.extend_from_slice(key.bytes());
            record.extend_from_slice(value);
        }
        let bytes = if is_word { value } else { record };
        let len = bytes.len() as u64;
        let reserved = supply.record(len)?;
        let payload = RecordRef { offset: reserved.offset(), len }.payload();
        Ok(Self { payload, low: crc32c_bytes(0, bytes), record: Some(reserved) })
    }
}

/// An entry to be written into its leaf, or into the right half of its leaf.
pub(crate) struct NewEntry<'a> {
    pub(super) key: &'a SearchKey<'a>,
    pub(super) payload: u64,
    pub(super) low: u32,
    pub(super) is_inline: bool,
}

impl NewEntry<'_> {
    pub(super) fn entry<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: &FrameLock<'_>,
    ) -> Result<Entry, WriteError> {
        let commit = Commit::new(Kind::Value, self.is_inline, session.next_stamp(leaf)?);
        Ok(Entry { key: self.key.head(), payload: self.payload, low: self.low, commit })
    }
}

/// The length of the record of a key and a value of this length; zero if the entry holds both.
pub(crate) fn record_bytes(is_word: bool, key: &SearchKey<'_>, value_len: usize) -> u64 {
    if value_len <= INLINE_BYTES && key.bytes().len() <= INLINE_BYTES {
        return 0;
    }
    let lengths_and_key = if is_word { 0 } else { 8 + key.bytes().len() };
    (lengths_and_key + value_len) as u64
}
