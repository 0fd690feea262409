//! What the slots of a root directory say: where a root is, which slot a new one takes, and with which generation.

use super::RootError;
use super::format::{ROOT_COUNT, ROOT_IN_USE, ROOT_NAME_BYTES, RootSlot};

/// Where a root's value lies, its length, and the fingerprint of its type.
pub(super) type Target = (u64, u64, u64);

pub(super) const FULL: RootError = RootError::Full { names: ROOT_COUNT - 1 };

/// What one look at the whole directory finds of a name.
pub(super) struct Found {
    pub(super) youngest: Option<(u64, RootSlot)>,
    pub(super) corrupted_count: usize,
}

impl Found {
    /// The slot of the root, or that there is none. Where some slot is corrupted, that is not known: to say that there is none could make
    /// the caller start anew.
    pub(super) fn known(self) -> Result<Option<(u64, RootSlot)>, RootError> {
        match self.corrupted_count {
            1.. if self.youngest.is_none() => Err(RootError::Corrupted { slots: self.corrupted_count }),
            _ => Ok(self.youngest),
        }
    }
}

pub(super) fn look_for(name: [u8; ROOT_NAME_BYTES], slots: impl Iterator<Item = (u64, RootSlot)>) -> Found {
    let mut found = Found { youngest: None, corrupted_count: 0 };
    for (at, slot) in slots {
        if slot.is_corrupted() {
            found.corrupted_count += 1;
        } else if slot.name == name
            && slot.is_in_use()
            && found.youngest.is_none_or(|(_, other)| other.generation <= slot.generation)
        {
            found.youngest = Some((at, slot));
        }
    }
    found
}

fn free_slots(slots: &[(u64, RootSlot)]) -> impl Iterator<Item = u64> {
    slots.iter().filter(|(_, slot)| slot.is_free()).map(|(at, _)| *at)
}

/// A slot for a name that has none. One slot stays free, for some root to be replaced.
pub(super) fn free_for_new_name(slots: &[(u64, RootSlot)]) -> Result<u64, RootError> {
    let mut free = free_slots(slots);
    match (free.next(), free.next()) {
        (Some(at), Some(_)) => Ok(at),
        _ => Err(FULL),
    }
}

/// The slot that a root of this name is stored to, and the one that it takes the place of.
pub(super) fn place_for(
    name: [u8; ROOT_NAME_BYTES],
    slots: &[(u64, RootSlot)],
) -> Result<(u64, Option<u64>), RootError> {
    match look_for(name, slots.iter().copied()).youngest {
        Some((old, _)) => Ok((free_slots(slots).next().ok_or(FULL)?, Some(old))),
        None => Ok((free_for_new_name(slots)?, None)),
    }
}

/// A slot in use, with a higher generation than any slot has or had before it was freed. So a root that is set after a removal is
/// younger than the removed one, should a log lose the removal.
pub(super) fn new_slot(
    name: [u8; ROOT_NAME_BYTES],
    (target_offset, target_bytes, layout): Target,
    slots: &[(u64, RootSlot)],
) -> Result<RootSlot, RootError> {
    // No checksum covers the generation of a free slot: one that no program counts up to is corrupted.
    let is_known = |slot: &RootSlot| slot.is_in_use() || slot.is_free() && slot.generation <= u64::MAX / 2;
    let known = slots.iter().map(|(_, slot)| slot).filter(|slot| is_known(slot));
    let highest = known.map(|slot| slot.generation).max().unwrap_or(0);
    let generation = highest.checked_add(1).ok_or(RootError::Corrupted { slots: 1 })?;
    let slot = RootSlot { crc: 0, state: ROOT_IN_USE, generation, target_offset, target_bytes, layout, name };
    Ok(slot.sealed())
}

pub(super) fn encode(name: &str) -> Result<[u8; ROOT_NAME_BYTES], RootError> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > ROOT_NAME_BYTES || bytes.contains(&0) {
        return Err(RootError::Name { name: name.to_owned() });
    }
    let mut encoded = [0; ROOT_NAME_BYTES];
    encoded[..bytes.len()].copy_from_slice(bytes);
    Ok(encoded)
}

/// Only names that were strings are ever sealed.
pub(super) fn name_of(name: &[u8; ROOT_NAME_BYTES]) -> &str {
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    str::from_utf8(&name[..len]).unwrap_or("\u{fffd}")
}
