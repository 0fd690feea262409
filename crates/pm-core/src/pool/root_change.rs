//! Changes of the root directory while other threads read it, through the same handle or another: slots that are being changed are hidden from
//! readers until the change is durable.

use super::format::ROOT_NAME_BYTES;
use super::root::SlotAt;
use crate::{FenceError, ProcessId};
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;
#[cfg(all(loom, test))]
use loom::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};
use std::sync::PoisonError;
#[cfg(not(all(loom, test)))]
use std::sync::{Mutex, MutexGuard, RwLock};

/// The value of a hint that refers to no slot.
const NO_HINT: u8 = u8::MAX;

/// The state of a pool's root directory in ordinary memory: shared by all handles of a region that keeps a [`WriterLock`](crate::WriterLock); without
/// this lock, each handle has a state of its own. While there is no change, readers take no lock. A child of fork(2) never takes a lock, because it
/// may have inherited the lock in locked state.
///
/// A change stores to a slot and needs several fences. Until the change is durable, other threads must not find a half-written slot, miss a root that
/// exists before and after the change, or find a root that a crash may undo. So a change first hides the slot: readers use a copy of the slot's
/// former contents. While there is no change, this costs a reader two loads of `version`.
#[derive(Debug)]
pub(super) struct DirectoryState {
    /// Odd during a change, and after a change that failed. It only increases, so that a reader detects each change by any handle.
    version: CachePadded<AtomicU64>,
    /// While `version` is odd: the slots that the change may store to, with the contents that readers use instead.
    hidden: RwLock<Vec<SlotAt>>,
    /// For each hash of a name, the index of the slot in which the last lookup found the root.
    hints: [AtomicU8; 64],
    /// The process whose threads change the directory. A child of fork(2) has a copy of this state. In that copy, a change that was running at the
    /// fork never ends.
    process: ProcessId,
}

/// Held by the thread that changes the directory through this handle. The value is true while slots are hidden, and stays true if the change fails.
pub(super) type ChangeLock = Mutex<bool>;

/// A change of the directory, from [`Pool::begin_root_change`](crate::Pool::begin_root_change). No other change starts before this value is dropped.
///
/// If the value is dropped before [`complete`](Self::complete), because a fence failed or a panic unwinds, hidden slots stay hidden: readers find the
/// former roots, and further changes are refused until the pool is opened again.
#[derive(Debug)]
#[must_use = "the slots of a change stay hidden until it is complete"]
pub struct RootChange<'d> {
    directory: &'d DirectoryState,
    /// True once slots are hidden, until the change is complete.
    incomplete: MutexGuard<'d, bool>,
}

impl Default for DirectoryState {
    fn default() -> Self {
        Self {
            version: CachePadded::new(AtomicU64::new(0)),
            hidden: RwLock::new(Vec::new()),
            hints: core::array::from_fn(|_| AtomicU8::new(NO_HINT)),
            process: ProcessId::current(),
        }
    }
}

impl DirectoryState {
    /// The hint for this name.
    pub(super) fn hint(&self, name: [u8; ROOT_NAME_BYTES]) -> &AtomicU8 {
        let words = name.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mixed = words.fold(0, |mixed: u64, word| (mixed ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        &self.hints[(mixed >> 58) as usize]
    }

    /// Runs `read` with no hidden slots. `None` if a change was running or began during the call: the result could be inconsistent.
    pub(super) fn read_unchanged<R>(&self, read: impl FnOnce(&[SlotAt]) -> R) -> Option<R> {
        let before = self.version.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        let result = read(&[]);
        // A reader that has loaded a word stored by a change sees the version of that change in the load below.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == before).then_some(result)
    }

    /// Runs `read` with the hidden slots, whose contents `read` must use in place of the same slots on the medium. Never waits for a fence. In a
    /// child of the process that changes the directory it takes no lock, and `read` may find the directory in the middle of a change.
    pub(super) fn read<R>(&self, read: impl Fn(&[SlotAt]) -> R) -> R {
        self.read_unchanged(&read).unwrap_or_else(|| {
            if !self.process.is_current() {
                return read(&[]);
            }
            // A change hides a slot before storing to it, and cannot hide another slot while this lock is held.
            read(&self.hidden.read().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Waits until the previous change is dropped, and starts a new one. The new change must [hide](RootChange::hide) a slot before storing to it.
    pub(super) fn change<'d>(&'d self, change_lock: &'d ChangeLock) -> Result<RootChange<'d>, FenceError> {
        let incomplete = change_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if *incomplete {
            return Err(FenceError::Poisoned);
        }
        Ok(RootChange { directory: self, incomplete })
    }

    /// Shows hidden slots to readers again, even those that a failed change of another handle left hidden. Only for the handle that may change roots.
    pub(super) fn show(&self) {
        if self.version.load(Ordering::Relaxed).is_multiple_of(2) {
            return;
        }
        *self.hidden.write().unwrap_or_else(PoisonError::into_inner) = Vec::new();
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl RootChange<'_> {
    /// From now on exactly `slots` are hidden: readers use these contents in place of the same slots on the medium. Waits for readers that are using
    /// the previously hidden slots.
    pub(super) fn hide(&mut self, slots: Vec<SlotAt>) {
        if !*self.incomplete {
            *self.incomplete = true;
            self.directory.version.fetch_add(1, Ordering::Relaxed);
            // Orders the new version before all stores of the change.
            fence(Ordering::Release);
        }
        *self.directory.hidden.write().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    /// Ends the change, and makes it visible to readers. The caller must have made all stores of the change durable, or have stored nothing.
    pub fn complete(mut self) {
        self.directory.show();
        *self.incomplete = false;
    }
}

/// Tests of lookups concurrent with a change: in every order of their accesses with up to three preemptions, and with every value that the memory
/// model allows a load to return. The words of the slots are stored and loaded relaxed, because no stronger order holds on every architecture. Run by
/// `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod tests {
    use super::*;
    use crate::pool::format::{ROOT_IN_USE, RootSlot};
    use crate::pool::root::SLOT_BYTES;
    use loom::sync::Arc;
    use loom::thread;

    const AT: [u64; 2] = [0, SLOT_BYTES];

    /// The directory, and two slots of two words: whether the slot is in use, and the target of its root.
    struct Model {
        directory: DirectoryState,
        change_lock: ChangeLock,
        slots: [[AtomicU64; 2]; 2],
    }

    impl Model {
        /// A slot with a root, and a free slot.
        fn new(root: u64) -> Arc<Self> {
            let slot = |root| [AtomicU64::new(u64::from(root != 0)), AtomicU64::new(root)];
            let (directory, change_lock) = (DirectoryState::default(), ChangeLock::new(false));
            Arc::new(Self { directory, change_lock, slots: [slot(root), slot(0)] })
        }

        fn store(&self, slot: usize, word: usize, value: u64) {
            self.slots[slot][word].store(value, Ordering::Relaxed);
        }

        fn hide(&self, change: &mut RootChange<'_>, slot: usize, root: Option<u64>) {
            let before = root.map_or(RootSlot::FREE, |root| RootSlot {
                state: ROOT_IN_USE,
                target_offset: root,
                ..RootSlot::FREE
            });
            change.hide(vec![(AT[slot], before)]);
        }

        /// The roots that a lookup finds, in the order of their slots.
        fn roots(&self) -> Vec<u64> {
            self.directory.read(|hidden| {
                let root = |slot: usize| match hidden.iter().find(|other| other.0 == AT[slot]) {
                    Some((_, before)) => (before.state == ROOT_IN_USE).then_some(before.target_offset),
                    None => {
                        let [in_use, root] = &self.slots[slot];
                        (in_use.load(Ordering::Relaxed) != 0).then(|| root.load(Ordering::Relaxed))
                    }
                };
                [0, 1].into_iter().filter_map(root).collect()
            })
        }
    }

    /// Runs `change` concurrently with two lookups, and checks their results with `is_right`.
    fn check(change: fn(&Model), is_right: fn(&[u64], &[u64]) -> bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Model::new(1);
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || change(&other));
            let (first, second) = (model.roots(), model.roots());
            assert!(is_right(&first, &second), "{first:?}, then {second:?}");
            thread.join().expect("no thread panics");
        });
    }

    /// A replacement as in [`RootDirectory::put_root`](super::super::RootDirectory): each lookup finds the old root or the new root, and after the
    /// new root never the old one.
    #[test]
    fn loom_lookup_during_replacement_finds_old_or_new_root() {
        let replace = |model: &Model| {
            let mut change = model.directory.change(&model.change_lock).expect("no change has failed");
            model.hide(&mut change, 1, None);
            model.store(1, 1, 2);
            model.store(1, 0, 1);
            model.hide(&mut change, 0, None);
            model.store(0, 0, 0);
            change.complete();
        };
        check(replace, |first, second| matches!((first, second), ([1], [1 | 2]) | ([2], [2])));
    }

    /// Stores a whole slot in place, as a transaction does: a lookup finds the old root or the new one.
    #[test]
    fn loom_lookup_during_replacement_in_place_finds_old_or_new_root() {
        let replace = |model: &Model| {
            let mut change = model.directory.change(&model.change_lock).expect("no change has failed");
            model.hide(&mut change, 0, Some(1));
            model.store(0, 0, 0);
            model.store(0, 1, 2);
            model.store(0, 0, 1);
            change.complete();
        };
        check(replace, |first, second| matches!((first, second), ([1], [1 | 2]) | ([2], [2])));
    }

    /// After a change that failed, lookups find the former root, and no other change starts.
    #[test]
    fn loom_lookup_after_failed_change_finds_old_root() {
        let fail = |model: &Model| {
            let mut change = model.directory.change(&model.change_lock).expect("no change has failed");
            model.hide(&mut change, 0, Some(1));
            model.store(0, 0, 0);
            drop(change);
            assert!(model.directory.change(&model.change_lock).is_err());
        };
        check(fail, |first, second| (first, second) == (&[1], &[1]));
    }

    /// The next handle shows the slots that a failed handle left hidden, before the next handle changes the same slot.
    #[test]
    fn loom_lookups_after_failed_change_and_next_handle_never_find_older_root() {
        let replace = |model: &Model| {
            let mut incomplete = model.directory.change(&model.change_lock).expect("no change has failed");
            model.hide(&mut incomplete, 0, Some(1));
            model.store(0, 1, 2);
            drop(incomplete);
            model.directory.show();
            let change_lock = ChangeLock::new(false);
            let mut change =
                model.directory.change(&change_lock).expect("no change of this handle has failed");
            model.hide(&mut change, 0, Some(2));
            model.store(0, 0, 0);
            model.store(0, 1, 3);
            model.store(0, 0, 1);
            change.complete();
        };
        check(
            replace,
            |first, second| matches!((first, second), ([first @ 1..=3], [second @ 1..=3]) if first <= second),
        );
    }
}
