//! Roots and their slots: the contents of a slot, and the choice of a slot for a root.

use super::RootError;
use super::format::{ROOT_COUNT, ROOT_IN_USE, ROOT_NAME_BYTES, ROOTS_START, RootSlot};
use crate::persist::bytes_of;
use core::fmt;
use core::mem::size_of;

/// The offset and length of a root's value, and the layout fingerprint of its type.
pub(super) type Target = (u64, u64, u64);

/// The offset of a slot in the region, and the contents of the slot.
pub(super) type SlotAt = (u64, RootSlot);

pub(super) const SLOT_BYTES: u64 = size_of::<RootSlot>() as u64;

pub(super) const FULL: RootError = RootError::Full { root_count_max: ROOT_COUNT - 1 };

/// A root in the directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Root {
    name: [u8; ROOT_NAME_BYTES],
    offset: u64,
    len_bytes: u64,
    layout: u64,
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name: _, offset, len_bytes, layout } = self;
        f.debug_struct("Root")
            .field("name", &self.name())
            .field("offset", offset)
            .field("len_bytes", len_bytes)
            .field("layout", layout)
            .finish()
    }
}

impl Root {
    pub(super) const fn of(slot: &RootSlot) -> Self {
        Self {
            name: slot.name,
            offset: slot.target_offset,
            len_bytes: slot.target_bytes,
            layout: slot.layout,
        }
    }

    /// The root's name.
    #[must_use]
    pub fn name(&self) -> &str {
        name_of(&self.name)
    }

    /// The offset of the root's value in the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The length of the root's value.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The fingerprint of the type of the root's value.
    #[must_use]
    pub const fn layout(&self) -> u64 {
        self.layout
    }

    /// Checks the layout and the length of the root's value.
    ///
    /// # Errors
    /// [`RootError::Type`] if either differs.
    pub fn expect_type(&self, expected_layout: u64, expected_bytes: u64) -> Result<(), RootError> {
        if (self.layout, self.len_bytes) == (expected_layout, expected_bytes) {
            return Ok(());
        }
        Err(RootError::Type {
            name: self.name().to_owned(),
            found_layout: self.layout,
            expected_layout,
            found_bytes: self.len_bytes,
            expected_bytes,
        })
    }
}

/// A write to a slot that sets or removes a root, from [`Pool::root_write`](crate::Pool::root_write). A transaction stores it atomically, through its
/// own log, between [`Pool::begin_root_change`](crate::Pool::begin_root_change) and [`RootChange::complete`](crate::RootChange::complete).
#[derive(Clone, Copy, Debug)]
pub struct RootWrite {
    pub(super) at: u64,
    pub(super) slot: RootSlot,
}

impl RootWrite {
    /// The offset in the region at which to store the bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.at
    }

    /// The name of the root that this write sets or removes.
    #[must_use]
    pub fn name(&self) -> &str {
        name_of(&self.slot.name)
    }

    /// The bytes to store.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        bytes_of(&self.slot)
    }

    /// The root that this write sets. `None` if it removes a root.
    #[must_use]
    pub fn root(&self) -> Option<Root> {
        self.slot.is_in_use().then(|| Root::of(&self.slot))
    }
}

/// The result of a search for one name: its slot with the highest generation (the youngest), and the number of corrupted slots in the directory.
pub(super) struct Lookup {
    pub(super) youngest: Option<SlotAt>,
    corrupted_count: usize,
}

impl Lookup {
    pub(super) fn new(name: [u8; ROOT_NAME_BYTES], slots: impl Iterator<Item = SlotAt>) -> Self {
        let mut lookup = Self { youngest: None, corrupted_count: 0 };
        for (at, slot) in slots {
            if slot.is_corrupted() {
                lookup.corrupted_count += 1;
            } else if slot.name == name
                && slot.is_in_use()
                && lookup.youngest.is_none_or(|(_, other)| other.generation <= slot.generation)
            {
                lookup.youngest = Some((at, slot));
            }
        }
        lookup
    }

    /// The slot of the root, or `None` if there is no such root. If no slot matches and a slot is corrupted, this is an error: the root may be in the
    /// corrupted slot, and a caller that takes the root for missing might create its data again.
    pub(super) fn resolve(self) -> Result<Option<SlotAt>, RootError> {
        match self.corrupted_count {
            1.. if self.youngest.is_none() => Err(RootError::Corrupted { slots: self.corrupted_count }),
            _ => Ok(self.youngest),
        }
    }
}

fn free_slots(slots: &[SlotAt]) -> impl Iterator<Item = u64> {
    slots.iter().filter(|(_, slot)| slot.is_free()).map(|(at, _)| *at)
}

/// The offset of a free slot for a name that no slot has. Another slot must stay free, so that a root can always be replaced.
pub(super) fn free_for_new_name(slots: &[SlotAt]) -> Result<u64, RootError> {
    let mut free = free_slots(slots);
    match (free.next(), free.next()) {
        (Some(at), Some(_)) => Ok(at),
        _ => Err(FULL),
    }
}

/// The offsets of two slots: the free slot for a new root of this name, and the slot of the root that it replaces, if there is one.
pub(super) fn slots_to_change(
    name: [u8; ROOT_NAME_BYTES],
    slots: &[SlotAt],
) -> Result<(u64, Option<u64>), RootError> {
    match Lookup::new(name, slots.iter().copied()).youngest {
        Some((old, _)) => Ok((free_slots(slots).next().ok_or(FULL)?, Some(old))),
        None => Ok((free_for_new_name(slots)?, None)),
    }
}

/// A slot in use. Its generation is higher than that of every slot, including freed slots: if a log loses the removal of a root, a root of the same
/// name that was set after the removal still has the higher generation.
pub(super) fn new_slot(
    name: [u8; ROOT_NAME_BYTES],
    (target_offset, target_bytes, layout): Target,
    slots: &[SlotAt],
) -> Result<RootSlot, RootError> {
    // No checksum covers the generation of a free slot. A generation above `u64::MAX / 2` cannot be reached by counting, so in a free slot such a
    // generation is corrupted, and is ignored.
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

/// The name as text. Only valid UTF-8 is sealed into a slot, so only a forged slot yields the replacement character.
fn name_of(name: &[u8; ROOT_NAME_BYTES]) -> &str {
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    str::from_utf8(&name[..len]).unwrap_or("\u{fffd}")
}

/// The offset of the slot with this index.
pub(super) const fn slot_offset(index: u64) -> u64 {
    ROOTS_START + index * SLOT_BYTES
}
