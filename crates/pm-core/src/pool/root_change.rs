//! Readers of the root directory beside a thread that changes it, by the same handle or another one: what is being changed is hidden
//! until it is durable.

use super::format::{ROOT_NAME_BYTES, ROOTS_START, RootSlot};
use super::roots::SLOT_BYTES;
use super::{Pool, RootError, RootWrite};
use crate::{FenceError, Pmem};
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
#[cfg(all(loom, test))]
use loom::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};
use std::sync::{Arc, PoisonError};
#[cfg(not(all(loom, test)))]
use std::sync::{Mutex, MutexGuard, RwLock};

/// Says that the slot of a name is not known.
const NO_HINT: u8 = u8::MAX;

/// What a handle that writes a pool knows of its directory in ordinary memory.
///
/// A change stores to a slot, and takes some fences to make that durable. Meanwhile other threads must find neither a
/// half-written slot, nor none where there is one before and after, nor a root that a crash may take back. So a change first
/// hides the slot that it will store to, by saying what the slot held before, and readers take that in its place. Where no
/// change is going on, reading costs two loads of a counter more than without all this.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Held during a change. The value is whether an earlier change failed half-way.
    changing: Mutex<bool>,
    /// Odd during a change.
    version: AtomicU64,
    /// During a change, the slots that it may be storing to, as they are for readers.
    hidden: RwLock<Vec<(u64, RootSlot)>>,
    /// For names, by hash, the index of the slot where the root was found last.
    hints: [AtomicU8; 64],
}

/// A change of the directory: no other one starts before it is dropped. From [`Pool::change_roots`](super::Pool::change_roots).
///
/// Dropped without [`complete`](Self::complete) after slots were hidden, because a fence failed or a panic came in between, it leaves
/// them hidden: readers go on finding what was there before, and the directory takes no more changes before the pool is opened again.
#[derive(Debug)]
#[must_use = "what is being changed is hidden until the change is complete"]
pub struct RootChange<'d> {
    directory: &'d Directory,
    /// Whether slots are hidden and the change is not complete.
    failed: MutexGuard<'d, bool>,
}

impl Directory {
    pub(super) fn new() -> Self {
        Self {
            changing: Mutex::new(false),
            version: AtomicU64::new(0),
            hidden: RwLock::new(Vec::new()),
            hints: core::array::from_fn(|_| AtomicU8::new(NO_HINT)),
        }
    }

    /// Where the index of this name's slot is remembered.
    pub(super) fn hint(&self, name: [u8; ROOT_NAME_BYTES]) -> &AtomicU8 {
        let words = name.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mixed = words.fold(0, |mixed: u64, word| (mixed ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        &self.hints[(mixed >> 58) as usize]
    }

    /// Runs `read` on the directory as it is, with no slot hidden. `None` where a change was going on meanwhile.
    pub(super) fn read_unchanged<R>(&self, read: impl FnOnce(&[(u64, RootSlot)]) -> R) -> Option<R> {
        let before = self.version.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        let answer = read(&[]);
        // A reader that has loaded a word of a change sees the change's version here.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == before).then_some(answer)
    }

    /// Runs `read` with the slots that must be taken from there instead of from the directory. Waits for no fence.
    pub(super) fn read<R>(&self, read: impl Fn(&[(u64, RootSlot)]) -> R) -> R {
        self.read_unchanged(&read).unwrap_or_else(|| {
            // A change hides a slot before it stores to it, which it cannot do while this is held.
            read(&self.hidden.read().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Starts a change, after those that are going on. It stores nothing before it [hides](RootChange::hide) the slots.
    pub(super) fn change(&self) -> Result<RootChange<'_>, FenceError> {
        let failed = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(FenceError::Poisoned);
        }
        Ok(RootChange { directory: self, failed })
    }
}

impl RootChange<'_> {
    /// Has readers take `slots` instead of what is in the directory, and anything else from there. Waits for those that read
    /// at this moment.
    pub(super) fn hide(&mut self, slots: Vec<(u64, RootSlot)>) {
        if !*self.failed {
            *self.failed = true;
            self.directory.version.fetch_add(1, Ordering::Relaxed);
            // Before any store of the change.
            fence(Ordering::Release);
        }
        *self.directory.hidden.write().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    /// Shows the change: all that it stored is durable, or it stored nothing.
    pub fn complete(mut self) {
        if !*self.failed {
            return;
        }
        self.hide(Vec::new());
        self.directory.version.fetch_add(1, Ordering::Release);
        *self.failed = false;
    }
}

impl<P: Pmem> Pool<P> {
    /// Runs `read` on the directory as it is, beside what a thread changes by this handle, or by the one that writes where this one only
    /// reads. Again, if another handle began to write meanwhile: what that one hides, the one before it did not.
    pub(super) fn with_directory<R>(&self, read: impl Fn(&Directory) -> R) -> R {
        let Some(writer_lock) = self.others_lock() else { return read(self.directory()) };
        loop {
            let its = writer_lock.directory();
            let answer = read(its.as_deref().unwrap_or(self.directory()));
            // A reader that has loaded a word of a change sees its writer here.
            fence(Ordering::Acquire);
            if writer_lock.directory().as_ref().map(Arc::as_ptr) == its.as_ref().map(Arc::as_ptr) {
                return answer;
            }
        }
    }

    /// As [`Directory::read`], of [the one that counts](Self::with_directory).
    pub(super) fn read_directory<R>(&self, read: impl Fn(&[(u64, RootSlot)]) -> R) -> R {
        self.with_directory(|directory| directory.read(&read))
    }

    /// Begins a change of the directory by a transaction, and hides what that is about to store to it: until the returned change is
    /// complete, [`find_root`](Self::find_root) and [`roots`](Self::roots) find what the slots hold now, in this and in other
    /// threads. `choose` says what that is, by [`root_write`](Self::root_write); it runs after other changes, and before
    /// others that wait meanwhile, so that what it finds stays so.
    ///
    /// To be called before any of it is stored, and [completed](RootChange::complete) when all of it is stored and durable, or
    /// nothing is stored.
    ///
    /// # Errors
    /// [`RootError::ReadOnly`]; [`FenceError::Poisoned`] when a fence of an earlier change failed; and what `choose` returns, which leaves
    /// no change, as does a panic of `choose`.
    pub fn change_roots<E: From<RootError>>(
        &self,
        choose: impl FnOnce() -> Result<Vec<RootWrite>, E>,
    ) -> Result<(RootChange<'_>, Vec<RootWrite>), E> {
        let mut change = self.begin_change()?;
        let writes = choose()?;
        let slot = |write: &RootWrite| self.slot((write.offset() - ROOTS_START) / SLOT_BYTES);
        change.hide(writes.iter().map(slot).collect());
        Ok((change, writes))
    }
}

/// A lookup beside a change, in every order of their accesses with up to three preemptions, and with every value that the memory model
/// lets a load return. The words of the slots are stored and loaded relaxed, as nothing else orders them on every architecture. Only with `--cfg loom`:
/// `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod tests {
    use super::*;
    use crate::pool::format::ROOT_IN_USE;
    use loom::sync::Arc;
    use loom::thread;

    const AT: [u64; 2] = [0, SLOT_BYTES];

    /// The directory, and for each of two slots whether it is in use, and its root's target.
    struct Model {
        directory: Directory,
        slots: [[AtomicU64; 2]; 2],
    }

    impl Model {
        /// A slot with a root, and a free one.
        fn new(root: u64) -> Arc<Self> {
            let slot = |root| [AtomicU64::new(u64::from(root != 0)), AtomicU64::new(root)];
            Arc::new(Self { directory: Directory::new(), slots: [slot(root), slot(0)] })
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

        /// The roots that are found, the youngest last.
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

    /// Runs `change` beside two lookups, which find what `is_right` says of the first and the second.
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

    /// As [`Pool::put_root`](crate::Pool) does: one of the two is found at every moment, and never the old one after the new one.
    #[test]
    fn loom_lookup_beside_a_replacement() {
        let replace = |model: &Model| {
            let mut change = model.directory.change().expect("no change has failed");
            model.hide(&mut change, 1, None);
            model.store(1, 1, 2);
            model.store(1, 0, 1);
            model.hide(&mut change, 0, None);
            model.store(0, 0, 0);
            change.complete();
        };
        check(replace, |first, second| matches!((first, second), ([1], [1 | 2]) | ([2], [2])));
    }

    /// As a transaction stores a whole slot in place.
    #[test]
    fn loom_lookup_beside_a_change_in_place() {
        let replace = |model: &Model| {
            let mut change = model.directory.change().expect("no change has failed");
            model.hide(&mut change, 0, Some(1));
            model.store(0, 0, 0);
            model.store(0, 1, 2);
            model.store(0, 0, 1);
            change.complete();
        };
        check(replace, |first, second| matches!((first, second), ([1], [1 | 2]) | ([2], [2])));
    }

    /// A change that fails half-way stays hidden.
    #[test]
    fn loom_lookup_beside_a_failed_change() {
        let fail = |model: &Model| {
            let mut change = model.directory.change().expect("no change has failed");
            model.hide(&mut change, 0, Some(1));
            model.store(0, 0, 0);
            drop(change);
            assert!(model.directory.change().is_err());
        };
        check(fail, |first, second| (first, second) == (&[1], &[1]));
    }
}
