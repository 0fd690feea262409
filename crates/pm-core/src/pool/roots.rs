//! The root directory: names for places in the data area, each replaced in one step.

use super::format::{ROOT_COUNT, ROOT_IN_USE, ROOT_NAME_BYTES, ROOTS_START, RootSlot};
use super::words::store_words;
use super::{Pool, RootError};
use crate::typed::{bytes_of, from_bytes};
use crate::{FenceError, Pmem};
use core::fmt;
use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;

pub(super) const SLOT_BYTES: u64 = size_of::<RootSlot>() as u64;

/// A root as the directory holds it.
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
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        name_of(&self.name)
    }

    /// Where its value lies in the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// How long its value is.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The fingerprint of its value's type.
    #[must_use]
    pub const fn layout(&self) -> u64 {
        self.layout
    }

    /// Nothing, if its value has this layout and this length.
    ///
    /// # Errors
    /// [`RootError::Type`] else.
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

/// What a transaction stores to set or to remove a root, all of it at once, by means of its own; from
/// [`Pool::root_write`]. Whoever else wants to change the directory waits until it is done.
#[derive(Clone, Copy, Debug)]
pub struct RootWrite {
    at: u64,
    slot: RootSlot,
}

impl RootWrite {
    /// Where in the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.at
    }

    /// The name of the root that it sets or removes.
    #[must_use]
    pub fn name(&self) -> &str {
        name_of(&self.slot.name)
    }

    /// What.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        bytes_of(&self.slot)
    }

    /// The root that will be there, if one will.
    #[must_use]
    pub fn root(&self) -> Option<Root> {
        self.slot.is_in_use().then(|| to_root(&self.slot))
    }
}

/// What one look at the whole directory finds of a name.
struct Found {
    youngest: Option<(u64, RootSlot)>,
    damaged_count: usize,
}

impl<P: Pmem> Pool<P> {
    /// What to store so that a root of this name has its value at `target`: offset, length and layout; or that there is no such
    /// root, for `None`. `staged` is what the same transaction will store already. `None` when there is nothing to do.
    ///
    /// The slot is changed where it is, which only one who stores it as a whole, at any crash, may do.
    ///
    /// # Errors
    /// As [`Scope::set_root`](crate::Scope::set_root).
    pub fn root_write(
        &self,
        name: &str,
        target: Option<(u64, u64, u64)>,
        staged: &[RootWrite],
    ) -> Result<Option<RootWrite>, RootError> {
        let name = encode(name)?;
        self.directory().read(|hidden| self.write_behind(hidden, name, target, staged))
    }

    fn write_behind(
        &self,
        hidden: &[(u64, RootSlot)],
        name: [u8; ROOT_NAME_BYTES],
        target: Option<(u64, u64, u64)>,
        staged: &[RootWrite],
    ) -> Result<Option<RootWrite>, RootError> {
        let ours = staged.iter().find(|write| write.slot.name == name).map(|write| (write.at, write.slot));
        let old = ours.or_else(|| self.look_for(name, hidden).youngest);
        let Some((target_offset, target_bytes, layout)) = target else {
            // The name stays, so that the same transaction finds the slot again.
            return Ok(old.map(|(at, slot)| RootWrite { at, slot: slot.freed() }));
        };
        let is_staged = |at| staged.iter().any(|write| write.at == at);
        let is_free = |(at, slot): &(u64, RootSlot)| slot.is_free() && !is_staged(*at);
        let mut free = self.slots_behind(hidden).filter(is_free).map(|(at, _)| at);
        let (at, generation) = match old {
            Some((at, slot)) => (at, slot.generation.checked_add(1)),
            // A new name leaves one slot free, for some root to be replaced.
            None => match (free.next(), free.next()) {
                (Some(at), Some(_)) => (at, Some(1)),
                _ => return Err(RootError::Full { names: ROOT_COUNT - 1 }),
            },
        };
        let generation = generation.ok_or(RootError::Damaged { slots: 1 })?;
        let slot =
            RootSlot { crc: 0, state: ROOT_IN_USE, generation, target_offset, target_bytes, layout, name };
        Ok(Some(RootWrite { at, slot: slot.sealed() }))
    }

    /// The root of this name, if there is one. While another thread replaces or removes it, this is the old one, until
    /// the change is durable.
    ///
    /// # Errors
    /// When the name cannot be one, or there is none while some of the directory is damaged.
    ///
    /// # Durability
    /// A root found is durable, but for a pool that was opened read-only: see [`Pool::attach_read_only`].
    pub fn find_root(&self, name: &str) -> Result<Option<Root>, RootError> {
        let name = encode(name)?;
        // Programs ask for the same few roots again and again: the slot of the last time is looked at first.
        let hint = self.directory().hint(name);
        let at_hint = |_: &[_]| self.slot(u64::from(hint.load(Relaxed)));
        if u64::from(hint.load(Relaxed)) < ROOT_COUNT
            && let Some((_, slot)) = self.directory().read_unchanged(at_hint)
            && slot.name == name
            && slot.is_in_use()
        {
            return Ok(Some(to_root(&slot)));
        }
        let found = self.directory().read(|hidden| self.look_for(name, hidden));
        match found.youngest {
            Some((at, slot)) => {
                #[expect(clippy::cast_possible_truncation, reason = "there are 64 slots")]
                hint.store(((at - ROOTS_START) / SLOT_BYTES) as u8, Relaxed);
                Ok(Some(to_root(&slot)))
            }
            // It may be one that is damaged; to say that there is none could make the caller start anew.
            None if found.damaged_count != 0 => Err(RootError::Damaged { slots: found.damaged_count }),
            None => Ok(None),
        }
    }

    /// All roots, sorted by name.
    pub fn roots(&self) -> Vec<Root> {
        let all = |hidden: &[(u64, RootSlot)]| -> Vec<RootSlot> {
            self.slots_behind(hidden).map(|(_, slot)| slot).filter(RootSlot::is_in_use).collect()
        };
        let mut slots = self.directory().read(all);
        slots.sort_by_key(|slot| (slot.name, core::cmp::Reverse(slot.generation)));
        // A crash while a root was replaced leaves both; the younger one counts.
        slots.dedup_by_key(|slot| slot.name);
        slots.iter().map(to_root).collect()
    }

    /// How many slots are neither in use nor free: corruption, for a crash leaves no such slot. A zeroed slot is one.
    pub fn damaged_root_count(&self) -> usize {
        let damaged = |hidden: &[(u64, RootSlot)]| {
            self.slots_behind(hidden).filter(|(_, slot)| slot.is_damaged()).count()
        };
        self.directory().read(damaged)
    }

    /// Forgets a root. Its value stays where it is.
    ///
    /// # Errors
    /// When the name cannot be one, the region is read-only, or a fence fails. A root that is not there is no error.
    ///
    /// # Durability
    /// When it returns, the root is gone; a crash before leaves it or not. Costs one fence.
    pub fn remove_root(&self, name: &str) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_writable()?;
        let change = self.directory().change()?;
        // One at most: a root is replaced completely before the next change starts.
        let slots: Vec<_> = self.slots_named(name).collect();
        // What other threads find, until it is durably gone.
        change.hide(slots.clone());
        for (at, _) in slots {
            // DURABILITY POINT
            self.write_first_word(at, &RootSlot::FREE)?;
        }
        change.complete();
        Ok(())
    }

    /// Sets a root: the new slot's contents, then the word that makes it count, and when that is durable, the old slot is
    /// cleared. That last fence is for [`remove_root`](Self::remove_root): it must not bring the old one back.
    ///
    /// The first one also waits for whatever this thread had in flight before: the value itself may be among it.
    ///
    /// Other threads find the old root until the new one is durable, then the new one: the slot that is being written is
    /// hidden from them.
    pub(crate) fn put_root(
        &self,
        name: &str,
        offset: u64,
        len_bytes: u64,
        layout: u64,
    ) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_writable()?;
        let change = self.directory().change()?;
        let old = self.youngest(name);
        let mut free = self.slots().filter(|(_, slot)| slot.is_free()).map(|(at, _)| at);
        // A new name leaves one slot free, for some root to be replaced.
        let (Some(free), true) = (free.next(), old.is_some() || free.next().is_some()) else {
            change.complete();
            return Err(RootError::Full { names: ROOT_COUNT - 1 });
        };
        let generation = old.map_or(Some(1), |(_, slot)| slot.generation.checked_add(1));
        let Some(generation) = generation else {
            change.complete();
            // No program counts that far; the slot is damaged, with a right checksum.
            return Err(RootError::Damaged { slots: 1 });
        };
        let slot = RootSlot {
            crc: 0,
            state: ROOT_IN_USE,
            generation,
            target_offset: offset,
            target_bytes: len_bytes,
            layout,
            name,
        };
        let slot = slot.sealed();
        change.hide(vec![(free, RootSlot::FREE)]);
        self.write_contents(free, &slot)?;
        // DURABILITY POINT
        self.write_first_word(free, &slot)?;
        if let Some((at, _)) = old {
            // In one step for those who look: the new one appears, the old one goes.
            change.hide(vec![(at, RootSlot::FREE)]);
            self.write_first_word(at, &RootSlot::FREE)?;
        }
        change.complete();
        Ok(())
    }

    /// Clears what a crash left of replaced roots, so that each name has one slot. The caller has made the directory durable:
    /// the younger slot, which stays, could else be lost with the older one gone.
    ///
    /// A log of transactions that is replayed later may hold one of these slots. It replays whole slots, so nothing is lost: of two
    /// slots that its entries have not reached yet, one is stored again in full, whatever was cleared here.
    pub(super) fn settle_roots(&self) -> Result<(), FenceError> {
        let change = self.directory().change()?;
        for (at, slot) in self.slots().filter(|(_, slot)| slot.is_in_use()) {
            if self.youngest(slot.name).is_some_and(|(youngest, _)| youngest != at) {
                self.write_first_word(at, &RootSlot::FREE)?;
            }
        }
        change.complete();
        Ok(())
    }

    fn check_writable(&self) -> Result<(), RootError> {
        if self.pmem().is_writable() { Ok(()) } else { Err(RootError::ReadOnly) }
    }

    fn look_for(&self, name: [u8; ROOT_NAME_BYTES], hidden: &[(u64, RootSlot)]) -> Found {
        let mut found = Found { youngest: None, damaged_count: 0 };
        for (at, slot) in self.slots_behind(hidden) {
            if slot.is_damaged() {
                found.damaged_count += 1;
            } else if slot.name == name
                && slot.is_in_use()
                && found.youngest.is_none_or(|(_, other)| other.generation <= slot.generation)
            {
                found.youngest = Some((at, slot));
            }
        }
        found
    }

    fn youngest(&self, name: [u8; ROOT_NAME_BYTES]) -> Option<(u64, RootSlot)> {
        self.slots_named(name).max_by_key(|(_, slot)| slot.generation)
    }

    fn slots_named(&self, name: [u8; ROOT_NAME_BYTES]) -> impl Iterator<Item = (u64, RootSlot)> {
        self.slots().filter(move |(_, slot)| slot.name == name && slot.is_in_use())
    }

    fn slots(&self) -> impl Iterator<Item = (u64, RootSlot)> {
        (0..ROOT_COUNT).map(|index| self.slot(index))
    }

    /// All slots, those that are being changed as they were before.
    fn slots_behind<'a>(
        &'a self,
        hidden: &'a [(u64, RootSlot)],
    ) -> impl Iterator<Item = (u64, RootSlot)> + 'a {
        let at = |index| ROOTS_START + index * SLOT_BYTES;
        let before = move |index| hidden.iter().find(|slot| slot.0 == at(index)).copied();
        (0..ROOT_COUNT).map(move |index| before(index).unwrap_or_else(|| self.slot(index)))
    }

    pub(super) fn slot(&self, index: u64) -> (u64, RootSlot) {
        let at = ROOTS_START + index * SLOT_BYTES;
        (at, from_bytes(|bytes| self.pmem().load(at, bytes)))
    }

    /// Everything but the first word, which stays that of a free slot.
    fn write_contents(&self, at: u64, slot: &RootSlot) -> Result<(), FenceError> {
        let contents = &bytes_of(slot)[size_of::<u64>()..];
        store_words(self.pmem(), at + size_of::<u64>() as u64, contents);
        self.pmem().persist(at, SLOT_BYTES)
    }

    /// In one piece: from here on the slot counts, or does no more.
    fn write_first_word(&self, at: u64, slot: &RootSlot) -> Result<(), FenceError> {
        self.pmem().store_u64(at, slot.first_word());
        self.pmem().persist(at, size_of::<u64>() as u64)
    }
}

/// Frees all slots of a region that is being formatted.
pub(super) fn clear<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    let len_bytes = ROOT_COUNT * SLOT_BYTES;
    for at in (ROOTS_START..ROOTS_START + len_bytes).step_by(size_of::<RootSlot>()) {
        pmem.store(at, bytes_of(&RootSlot::FREE));
    }
    pmem.persist(ROOTS_START, len_bytes)
}

fn encode(name: &str) -> Result<[u8; ROOT_NAME_BYTES], RootError> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > ROOT_NAME_BYTES || bytes.contains(&0) {
        return Err(RootError::Name { name: name.to_owned() });
    }
    let mut encoded = [0; ROOT_NAME_BYTES];
    encoded[..bytes.len()].copy_from_slice(bytes);
    Ok(encoded)
}

/// Only names that were strings are ever sealed.
fn name_of(name: &[u8; ROOT_NAME_BYTES]) -> &str {
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    str::from_utf8(&name[..len]).unwrap_or("\u{fffd}")
}

const fn to_root(slot: &RootSlot) -> Root {
    Root { name: slot.name, offset: slot.target_offset, len_bytes: slot.target_bytes, layout: slot.layout }
}
