//! The root directory: names for values in the data area. Each root is set, replaced and removed atomically.

use super::format::{ROOT_COUNT, ROOT_NAME_BYTES, ROOTS_START, RootSlot};
use super::root::{
    FULL, Lookup, SLOT_BYTES, SlotAt, Target, encode, free_for_new_name, new_slot, slot_offset,
    slots_to_change,
};
use super::root_change::{ChangeLock, DirectoryState, RootChange};
use super::{Root, RootError, RootWrite};
use crate::persist::{bytes_of, from_bytes};
use crate::pmem::store_words;
use crate::{FenceError, Pmem, Region};
use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;

/// The root directory of a pool. Its public methods are for the owner of the log of a pool [with logged
/// roots](super::PoolOptions::with_logged_roots). They change the directory without a transaction, which is allowed only while no log entry could
/// overwrite the change on replay: during creation, after recovery, and after a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct RootDirectory<'p, P: Pmem = Region> {
    pub(super) pmem: &'p P,
    pub(super) state: &'p DirectoryState,
    /// `None` for a handle that may not change the root directory.
    pub(super) change_lock: Option<&'p ChangeLock>,
    pub(super) is_logged: bool,
}

impl<'p, P: Pmem> RootDirectory<'p, P> {
    /// Of two slots with one name, frees the older one. There are two if a root was removed and set again, and corruption of the log lost the
    /// removal. Call this once, after the log is replayed: before that, replay may still free the younger slot, and the older one would then be the
    /// valid root.
    ///
    /// # Errors
    /// When the pool is read-only, or a fence fails.
    ///
    /// # Durability
    /// The caller must have made the directory durable; otherwise a crash could lose the younger slot too. A crash leaves both slots or only the
    /// younger slot. Costs one fence for each slot that is freed.
    pub fn free_replaced_slots(&self) -> Result<(), RootError> {
        Ok(self.free_older_slots(self.begin_change()?)?)
    }

    /// See [`free_replaced_slots`](Self::free_replaced_slots).
    pub(super) fn free_older_slots(&self, mut change: RootChange<'_>) -> Result<(), FenceError> {
        change.hide(Vec::new());
        for (at, slot) in self.slots().filter(|(_, slot)| slot.is_in_use()) {
            let youngest = self.slots_named(slot.name).max_by_key(|(_, slot)| slot.generation);
            if youngest.is_some_and(|(youngest, _)| youngest != at) {
                write_first_word(self.pmem, at, &RootSlot::FREE)?;
            }
        }
        change.complete();
        Ok(())
    }

    /// Sets the root of the log's owner again, after a lookup did not find it. `target` is the offset, length and layout of its value. The root is
    /// stored in the first corrupted slot, which may be its old slot, or, if no slot is corrupted, in a free slot, even the last free one.
    ///
    /// # Errors
    /// When the name is not a valid root name, no slot is corrupted or free, the pool is read-only, or a fence fails.
    ///
    /// # Durability
    /// When it returns, the root is durable, and so is everything that this thread flushed before. A crash before that leaves the root set, or its
    /// slot unchanged or corrupted. Costs one fence.
    pub fn restore_missing(&self, name: &str, target: Target) -> Result<(), RootError> {
        let name = encode(name)?;
        let mut change = self.begin_change()?;
        let slots: Vec<SlotAt> = self.slots().collect();
        let is_corrupted = |(_, slot): &&SlotAt| slot.is_corrupted();
        let is_free = |(_, slot): &&SlotAt| slot.is_free();
        let old = slots.iter().find(is_corrupted).or_else(|| slots.iter().find(is_free)).ok_or(FULL)?;
        let slot = new_slot(name, target, &slots)?;
        change.hide(vec![*old]);
        // The words of the slot need no order: a slot that a crash leaves torn counts as corrupted, and the root was missing before.
        store_slot(self.pmem, old.0, &slot);
        // DURABILITY POINT
        self.pmem.fence()?;
        change.complete();
        Ok(())
    }

    /// As [`Pool::discard_corrupted_roots`](crate::Pool::discard_corrupted_roots).
    ///
    /// # Errors
    /// When the pool is read-only, or a fence fails.
    ///
    /// # Durability
    /// As [`Pool::discard_corrupted_roots`](crate::Pool::discard_corrupted_roots).
    pub fn discard_corrupted(&self) -> Result<usize, RootError> {
        let mut change = self.begin_change()?;
        let corrupted: Vec<_> = self.slots().filter(|(_, slot)| slot.is_corrupted()).collect();
        let count = corrupted.len();
        if count == 0 {
            return Ok(0);
        }
        change.hide(corrupted.clone());
        for (at, _) in corrupted {
            store_slot(self.pmem, at, &RootSlot::FREE);
        }
        // DURABILITY POINT
        self.pmem.fence()?;
        change.complete();
        Ok(count)
    }

    /// See [`Pool::root_write`](crate::Pool::root_write).
    pub(super) fn write(
        &self,
        name: &str,
        target: Option<Target>,
        staged: &[RootWrite],
    ) -> Result<Option<RootWrite>, RootError> {
        let name = encode(name)?;
        // If several staged writes store to one slot, the last write counts. So a transaction can reuse a slot that it frees.
        let staged_at = |at| staged.iter().rev().find(|write| write.at == at).map(|write| write.slot);
        let staged_slots = |hidden: &[SlotAt]| -> Vec<SlotAt> {
            self.slots_with_hidden(hidden).map(|(at, slot)| (at, staged_at(at).unwrap_or(slot))).collect()
        };
        let slots = self.state.read(staged_slots);
        let lookup = Lookup::new(name, slots.iter().copied());
        let Some(target) = target else {
            return Ok(lookup.resolve()?.map(|(at, slot)| RootWrite { at, slot: slot.freed() }));
        };
        let at = match lookup.youngest {
            Some((at, _)) => at,
            None => free_for_new_name(&slots)?,
        };
        Ok(Some(RootWrite { at, slot: new_slot(name, target, &slots)? }))
    }

    /// See [`Pool::find_root`](crate::Pool::find_root).
    pub(super) fn find(&self, name: &str) -> Result<Option<Root>, RootError> {
        let name = encode(name)?;
        // Programs look up the same few roots repeatedly, so the slot in which the last lookup found the root is tried first.
        let hint = self.state.hint(name);
        let load_hinted = |_: &[_]| load_slot(self.pmem, slot_offset(u64::from(hint.load(Relaxed))));
        if u64::from(hint.load(Relaxed)) < ROOT_COUNT
            && let Some(slot) = self.state.read_unchanged(load_hinted)
            && slot.name == name
            && slot.is_in_use()
        {
            return Ok(Some(Root::of(&slot)));
        }
        let lookup = self.state.read(|hidden| Lookup::new(name, self.slots_with_hidden(hidden)));
        Ok(lookup.resolve()?.map(|(at, slot)| {
            #[expect(clippy::cast_possible_truncation, reason = "there are 64 slots")]
            hint.store(((at - ROOTS_START) / SLOT_BYTES) as u8, Relaxed);
            Root::of(&slot)
        }))
    }

    /// See [`Pool::roots`](crate::Pool::roots).
    pub(super) fn list(&self) -> Vec<Root> {
        let in_use = |hidden: &[SlotAt]| -> Vec<RootSlot> {
            self.slots_with_hidden(hidden).map(|(_, slot)| slot).filter(RootSlot::is_in_use).collect()
        };
        let mut slots = self.state.read(in_use);
        // Only corruption leaves two slots with the same name and generation. Every lookup takes the last of these slots.
        slots.reverse();
        slots.sort_by_key(|slot| (slot.name, core::cmp::Reverse(slot.generation)));
        // A crash during the replacement of a root may leave both slots; the younger slot is valid.
        slots.dedup_by_key(|slot| slot.name);
        slots.iter().map(Root::of).collect()
    }

    pub(super) fn corrupted_count(&self) -> usize {
        self.state
            .read(|hidden| self.slots_with_hidden(hidden).filter(|(_, slot)| slot.is_corrupted()).count())
    }

    /// See [`Pool::check_root`](crate::Pool::check_root).
    pub(super) fn check(&self, name: &str) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_unlogged()?;
        let _no_other_change = self.begin_change()?;
        let slots: Vec<SlotAt> = self.slots().collect();
        slots_to_change(name, &slots)?;
        new_slot(name, (0, 0, 0), &slots).map(drop)
    }

    /// Sets a root in three steps, each durable before the next: stores the contents of the new slot; stores the first word of this slot, which makes
    /// it valid; and frees the old slot, if any. Without the last fence, the old root could reappear after a later [`remove_root`](Self::remove_root)
    /// and a crash. The first fence also makes durable what this thread flushed before the call, which may include the value itself.
    ///
    /// Other threads find the old root until the new root is durable, and then the new root: the slot that is being written is hidden.
    pub(super) fn put_root(&self, name: &str, target: Target) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_unlogged()?;
        let mut change = self.begin_change()?;
        let slots: Vec<SlotAt> = self.slots().collect();
        let (free, old) = slots_to_change(name, &slots)?;
        let slot = new_slot(name, target, &slots)?;
        change.hide(vec![(free, RootSlot::FREE)]);
        write_contents(self.pmem, free, &slot)?;
        // DURABILITY POINT
        write_first_word(self.pmem, free, &slot)?;
        if let Some(at) = old {
            // The new root replaces the old one atomically for readers.
            change.hide(vec![(at, RootSlot::FREE)]);
            write_first_word(self.pmem, at, &RootSlot::FREE)?;
        }
        change.complete();
        Ok(())
    }

    /// See [`Pool::remove_root`](crate::Pool::remove_root).
    pub(super) fn remove_root(&self, name: &str) -> Result<(), RootError> {
        let name = encode(name)?;
        self.check_unlogged()?;
        let mut change = self.begin_change()?;
        if Lookup::new(name, self.slots()).resolve()?.is_none() {
            return Ok(());
        }
        let mut slots: Vec<_> = self.slots_named(name).collect();
        // If other code has stored to the pool, older slots of the name may exist. They are freed before the youngest slot; otherwise a crash could
        // leave an older root as the valid one.
        slots.sort_by_key(|(_, slot)| slot.generation);
        // Other threads find the root until the removal is durable.
        change.hide(slots.clone());
        for (at, _) in slots {
            // DURABILITY POINT
            write_first_word(self.pmem, at, &RootSlot::FREE)?;
        }
        change.complete();
        Ok(())
    }

    /// See [`Pool::hide_roots`](crate::Pool::hide_roots).
    pub(super) fn hide(&self, change: &mut RootChange<'_>, writes: &[RootWrite]) {
        change.hide(writes.iter().map(|write| (write.at, load_slot(self.pmem, write.at))).collect());
    }

    /// See [`Pool::begin_root_change`](crate::Pool::begin_root_change).
    pub(super) fn begin_change(&self) -> Result<RootChange<'p>, RootError> {
        Ok(self.state.change(self.change_lock.ok_or(RootError::ReadOnly)?)?)
    }

    /// Refuses changes by the pool's own methods if the roots are logged: a replay of the log could undo them.
    pub(super) fn check_unlogged(&self) -> Result<(), RootError> {
        if self.is_logged { Err(RootError::Logged) } else { Ok(()) }
    }

    fn slots_named(&self, name: [u8; ROOT_NAME_BYTES]) -> impl Iterator<Item = SlotAt> {
        self.slots().filter(move |(_, slot)| slot.name == name && slot.is_in_use())
    }

    fn slots(&self) -> impl Iterator<Item = SlotAt> {
        self.slots_with_hidden(&[])
    }

    /// All slots, with the contents in `hidden` in place of the same slots on the medium.
    fn slots_with_hidden(&self, hidden: &[SlotAt]) -> impl Iterator<Item = SlotAt> {
        (0..ROOT_COUNT).map(slot_offset).map(move |at| {
            let before = hidden.iter().find(|slot| slot.0 == at);
            before.copied().unwrap_or_else(|| (at, load_slot(self.pmem, at)))
        })
    }
}

fn load_slot<P: Pmem>(pmem: &P, at: u64) -> RootSlot {
    from_bytes(|bytes| pmem.load(at, bytes))
}

/// Stores a whole slot and flushes it. A crash before the next fence may leave the slot torn.
fn store_slot<P: Pmem>(pmem: &P, at: u64, slot: &RootSlot) {
    store_words(pmem, at, bytes_of(slot));
    pmem.flush(at, SLOT_BYTES);
}

/// Stores all words except the first, which stays that of a free slot, and makes them durable.
fn write_contents<P: Pmem>(pmem: &P, at: u64, slot: &RootSlot) -> Result<(), FenceError> {
    let contents = &bytes_of(slot)[size_of::<u64>()..];
    store_words(pmem, at + size_of::<u64>() as u64, contents);
    pmem.persist(at, SLOT_BYTES)
}

/// Stores the first word atomically and makes it durable. This word makes the slot valid or free.
fn write_first_word<P: Pmem>(pmem: &P, at: u64, slot: &RootSlot) -> Result<(), FenceError> {
    pmem.store_u64(at, slot.first_word());
    pmem.persist(at, size_of::<u64>() as u64)
}

/// Frees all slots of a region that is being formatted.
pub(super) fn clear<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    let len_bytes = ROOT_COUNT * SLOT_BYTES;
    for at in (ROOTS_START..ROOTS_START + len_bytes).step_by(size_of::<RootSlot>()) {
        pmem.store(at, bytes_of(&RootSlot::FREE));
    }
    pmem.persist(ROOTS_START, len_bytes)
}
