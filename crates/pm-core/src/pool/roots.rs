//! The root directory: names for places in the data area, each replaced in one step.

use super::format::{ROOT_COUNT, ROOT_NAME_BYTES, ROOTS_START, RootSlot};
use super::root_change::RootChange;
use super::root_slots::{FULL, Target, encode, free_for_new_name, look_for, new_slot, place_for};
use super::words::store_words;
use super::{Pool, Root, RootError, RootWrite};
use crate::typed::{bytes_of, from_bytes};
use crate::{FenceError, Pmem};
use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;

pub(super) const SLOT_BYTES: u64 = size_of::<RootSlot>() as u64;

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
        target: Option<Target>,
        staged: &[RootWrite],
    ) -> Result<Option<RootWrite>, RootError> {
        let name = encode(name)?;
        self.directory().read(|hidden| self.write_behind(hidden, name, target, staged))
    }

    fn write_behind(
        &self,
        hidden: &[(u64, RootSlot)],
        name: [u8; ROOT_NAME_BYTES],
        target: Option<Target>,
        staged: &[RootWrite],
    ) -> Result<Option<RootWrite>, RootError> {
        // Of two writes to one slot, the later one counts: a slot that the transaction frees can be used by the same transaction.
        let staged_at = |at| staged.iter().rev().find(|write| write.at == at).map(|write| write.slot);
        let slots = self.slots_behind(hidden).map(|(at, slot)| (at, staged_at(at).unwrap_or(slot)));
        let slots: Vec<(u64, RootSlot)> = slots.collect();
        let found = look_for(name, slots.iter().copied());
        let Some(target) = target else {
            return Ok(found.known()?.map(|(at, slot)| RootWrite { at, slot: slot.freed() }));
        };
        let at = match found.youngest {
            Some((at, _)) => at,
            None => free_for_new_name(&slots)?,
        };
        Ok(Some(RootWrite { at, slot: new_slot(name, target, &slots)? }))
    }

    /// The root of this name, if there is one. While another thread replaces or removes it, this is the old one, until
    /// the change is durable.
    ///
    /// # Errors
    /// When the name cannot be one, or there is none while some of the directory is corrupted.
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
            return Ok(Some(Root::of(&slot)));
        }
        let found = self.directory().read(|hidden| look_for(name, self.slots_behind(hidden)));
        Ok(found.known()?.map(|(at, slot)| {
            #[expect(clippy::cast_possible_truncation, reason = "there are 64 slots")]
            hint.store(((at - ROOTS_START) / SLOT_BYTES) as u8, Relaxed);
            Root::of(&slot)
        }))
    }

    /// All roots, sorted by name.
    pub fn roots(&self) -> Vec<Root> {
        let all = |hidden: &[(u64, RootSlot)]| -> Vec<RootSlot> {
            self.slots_behind(hidden).map(|(_, slot)| slot).filter(RootSlot::is_in_use).collect()
        };
        let mut slots = self.directory().read(all);
        // Of slots with one name and one generation, which only corruption leaves, all lookups take the last.
        slots.reverse();
        slots.sort_by_key(|slot| (slot.name, core::cmp::Reverse(slot.generation)));
        // A crash while a root was replaced leaves both; the younger one counts.
        slots.dedup_by_key(|slot| slot.name);
        slots.iter().map(Root::of).collect()
    }

    /// How many slots are neither in use nor free: corruption, zeroed slots too. A crash leaves no such slot, but in a pool with [logged
    /// roots](crate::PoolOptions::with_logged_roots): there a transaction that the crash interrupted may leave one until its log is replayed.
    pub fn corrupted_root_count(&self) -> usize {
        let corrupted = |hidden: &[(u64, RootSlot)]| {
            self.slots_behind(hidden).filter(|(_, slot)| slot.is_corrupted()).count()
        };
        self.directory().read(corrupted)
    }

    /// Forgets a root. Its value stays where it is.
    ///
    /// # Errors
    /// When the name cannot be one, the pool is read-only or has [logged roots](crate::PoolOptions::with_logged_roots), or a fence fails. A
    /// root that is not there is no error, unless some of the directory is corrupted: it may be one of the corrupted slots then.
    ///
    /// # Durability
    /// When it returns, the root is gone; a crash before leaves it or not. Costs one fence.
    pub fn remove_root(&self, name: &str) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_unlogged()?;
        let mut change = self.begin_change()?;
        if look_for(name, self.slots()).known()?.is_none() {
            return Ok(());
        }
        let mut slots: Vec<_> = self.slots_named(name).collect();
        // There may be older ones in a pool that something else has stored to. The youngest goes last, or a crash would bring them back.
        slots.sort_by_key(|(_, slot)| slot.generation);
        // What other threads find, until it is durably gone.
        change.hide(slots.clone());
        for (at, _) in slots {
            // DURABILITY POINT
            self.write_first_word(at, &RootSlot::FREE)?;
        }
        change.complete();
        Ok(())
    }

    /// Finds out if a root of this name can be set: what is to be named need not be stored where it cannot be named. Changes nothing.
    /// Another thread that sets roots meanwhile may take the last free slot.
    ///
    /// # Errors
    /// As [`Scope::set_root`](crate::Scope::set_root), but that no fence is tried.
    pub fn check_root(&self, name: &str) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_unlogged()?;
        let _no_other = self.begin_change()?;
        let slots: Vec<(u64, RootSlot)> = self.slots().collect();
        place_for(name, &slots)?;
        new_slot(name, (0, 0, 0), &slots).map(drop)
    }

    /// Sets a root: the new slot's contents, then the word that makes it count, and when that is durable, the old slot is
    /// cleared. That last fence is for [`remove_root`](Self::remove_root): it must not bring the old one back.
    ///
    /// The first one also waits for whatever this thread had in flight before: the value itself may be among it.
    ///
    /// Other threads find the old root until the new one is durable, then the new one: the slot that is being written is
    /// hidden from them.
    pub(crate) fn put_root(&self, name: &str, target: Target) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_unlogged()?;
        let mut change = self.begin_change()?;
        let slots: Vec<(u64, RootSlot)> = self.slots().collect();
        let (free, old) = place_for(name, &slots)?;
        let slot = new_slot(name, target, &slots)?;
        change.hide(vec![(free, RootSlot::FREE)]);
        self.write_contents(free, &slot)?;
        // DURABILITY POINT
        self.write_first_word(free, &slot)?;
        if let Some(at) = old {
            // In one step for those who look: the new one appears, the old one goes.
            change.hide(vec![(at, RootSlot::FREE)]);
            self.write_first_word(at, &RootSlot::FREE)?;
        }
        change.complete();
        Ok(())
    }

    /// Sets a root of which no slot is left, over the first corrupted slot, or into the first free one where none is corrupted. A slot that is
    /// torn meanwhile is corrupted, so all of it is stored at once.
    pub(super) fn put_lost_root(&self, name: &str, target: Target) -> Result<(), RootError> {
        let name = encode(name)?;
        let mut change = self.begin_change()?;
        let slots: Vec<(u64, RootSlot)> = self.slots().collect();
        let is_corrupted = |(_, slot): &&(u64, RootSlot)| slot.is_corrupted();
        let is_free = |(_, slot): &&(u64, RootSlot)| slot.is_free();
        let old = slots.iter().find(is_corrupted).or_else(|| slots.iter().find(is_free)).ok_or(FULL)?;
        let slot = new_slot(name, target, &slots)?;
        change.hide(vec![*old]);
        self.store_slot(old.0, &slot);
        // DURABILITY POINT
        self.pmem().fence()?;
        change.complete();
        Ok(())
    }

    /// Gives up the roots that corrupted slots held: frees these slots. Afterwards a root that is not found is known not to be there, and
    /// the slots can be used again. Returns how many they were. What the roots named stays where it is.
    ///
    /// # Errors
    /// When the pool is read-only or has [logged roots](crate::PoolOptions::with_logged_roots), or a fence fails.
    ///
    /// # Durability
    /// When it returns, the slots are free; a crash before leaves each of them corrupted or free. Costs one fence where a slot is corrupted.
    pub fn discard_corrupted_roots(&self) -> Result<usize, RootError> {
        self.check_unlogged()?;
        self.free_corrupted()
    }

    /// As [`discard_corrupted_roots`](Self::discard_corrupted_roots), also of a pool with logged roots.
    pub(super) fn free_corrupted(&self) -> Result<usize, RootError> {
        let mut change = self.begin_change()?;
        let corrupted: Vec<_> = self.slots().filter(|(_, slot)| slot.is_corrupted()).collect();
        let count = corrupted.len();
        if count == 0 {
            return Ok(0);
        }
        change.hide(corrupted.clone());
        for (at, _) in corrupted {
            self.store_slot(at, &RootSlot::FREE);
        }
        // DURABILITY POINT
        self.pmem().fence()?;
        change.complete();
        Ok(count)
    }

    /// Clears what a crash left of replaced roots, so that each name has one slot. The caller has made the directory durable:
    /// the younger slot, which stays, could else be lost with the older one gone. And it has replayed the log, where the roots are logged:
    /// what is left of an older root may be needed, if the younger one is not.
    pub(super) fn settle_roots(&self, mut change: RootChange<'_>) -> Result<(), FenceError> {
        change.hide(Vec::new());
        for (at, slot) in self.slots().filter(|(_, slot)| slot.is_in_use()) {
            if self.youngest(slot.name).is_some_and(|(youngest, _)| youngest != at) {
                self.write_first_word(at, &RootSlot::FREE)?;
            }
        }
        change.complete();
        Ok(())
    }

    /// Starts a change of the directory, if the pool may be written.
    pub(super) fn begin_change(&self) -> Result<RootChange<'_>, RootError> {
        let changing = self.changing().ok_or(RootError::ReadOnly)?;
        Ok(self.directory().change(changing)?)
    }

    /// What the pool itself changed in a directory with a log, a replay would take back.
    fn check_unlogged(&self) -> Result<(), RootError> {
        if self.has_logged_roots() { Err(RootError::Logged) } else { Ok(()) }
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

    /// In no order, and durable at the next fence.
    fn store_slot(&self, at: u64, slot: &RootSlot) {
        store_words(self.pmem(), at, bytes_of(slot));
        self.pmem().flush(at, SLOT_BYTES);
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
