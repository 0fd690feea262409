//! Readers of the root directory beside a thread that changes it, by the same handle or another one: what is being changed is hidden
//! until it is durable.

use super::format::{ROOT_NAME_BYTES, ROOTS_START, RootSlot};
use super::roots::SLOT_BYTES;
use super::{Pool, RootError, RootWrite};
use crate::{FenceError, Pmem, ProcessId};
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
#[cfg(all(loom, test))]
use loom::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};
use std::sync::PoisonError;
#[cfg(not(all(loom, test)))]
use std::sync::{Mutex, MutexGuard, RwLock};

/// Says that the slot of a name is not known.
const NO_HINT: u8 = u8::MAX;

/// What is known of a pool's directory in ordinary memory: by all handles of a region that keeps a
/// [`WriterLock`](crate::WriterLock), or else by one. Where no change is going on, reading takes no lock; and a child of fork(2), which
/// could inherit a lock locked, takes none at all.
///
/// A change stores to a slot, and takes some fences to make that durable. Meanwhile other threads must find neither a
/// half-written slot, nor none where there is one before and after, nor a root that a crash may take back. So a change first
/// hides the slot that it will store to, by saying what the slot held before, and readers take that in its place. Where no
/// change is going on, reading costs two loads of a counter more than without all this.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Odd during a change, and after one that failed half-way. It never goes back, so that one who reads beside several changes, of
    /// several handles, sees each.
    version: AtomicU64,
    /// During a change, the slots that it may be storing to, as they are for readers.
    hidden: RwLock<Vec<(u64, RootSlot)>>,
    /// For names, by hash, the index of the slot where the root was found last.
    hints: [AtomicU8; 64],
    /// The process whose changes these are. A child of fork(2) has a copy in which a change that was going on never ends.
    process: ProcessId,
}

/// Which thread of a handle changes the directory: held during a change. The value is whether an earlier change failed half-way.
pub(super) type Changing = Mutex<bool>;

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

impl Default for Directory {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            hidden: RwLock::new(Vec::new()),
            hints: core::array::from_fn(|_| AtomicU8::new(NO_HINT)),
            process: ProcessId::current(),
        }
    }
}

impl Directory {
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

    /// Runs `read` with the slots that must be taken from there instead of from the directory. Waits for no fence. In a child of the process
    /// that changes the directory it waits for nothing, and reads the directory as it is, in the middle of a change.
    pub(super) fn read<R>(&self, read: impl Fn(&[(u64, RootSlot)]) -> R) -> R {
        self.read_unchanged(&read).unwrap_or_else(|| {
            if !self.process.is_current() {
                return read(&[]);
            }
            // A change hides a slot before it stores to it, which it cannot do while this is held.
            read(&self.hidden.read().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Starts a change, after those that are going on. It stores nothing before it [hides](RootChange::hide) the slots.
    pub(super) fn change<'d>(&'d self, changing: &'d Changing) -> Result<RootChange<'d>, FenceError> {
        let failed = changing.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(FenceError::Poisoned);
        }
        Ok(RootChange { directory: self, failed })
    }

    /// Shows what a change has hidden, if any has, also one that another handle left half-way. Only for the one handle that may change
    /// the directory.
    pub(super) fn show(&self) {
        if self.version.load(Ordering::Relaxed).is_multiple_of(2) {
            return;
        }
        *self.hidden.write().unwrap_or_else(PoisonError::into_inner) = Vec::new();
        self.version.fetch_add(1, Ordering::Release);
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
        self.directory.show();
        *self.failed = false;
    }
}

impl<P: Pmem> Pool<P> {
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

/// A lookup beside a change, in every order of their accesses with up to three preemptions, and with every value that the memory
/// model lets a load return. The words of the slots are stored and loaded relaxed, as nothing else orders them on every
/// architecture. Only with `--cfg loom`: `cargo xtask test loom`.
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
        changing: Changing,
        slots: [[AtomicU64; 2]; 2],
    }

    impl Model {
        /// A slot with a root, and a free one.
        fn new(root: u64) -> Arc<Self> {
            let slot = |root| [AtomicU64::new(u64::from(root != 0)), AtomicU64::new(root)];
            let (directory, changing) = (Directory::default(), Changing::new(false));
            Arc::new(Self { directory, changing, slots: [slot(root), slot(0)] })
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
            let mut change = model.directory.change(&model.changing).expect("no change has failed");
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
            let mut change = model.directory.change(&model.changing).expect("no change has failed");
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
            let mut change = model.directory.change(&model.changing).expect("no change has failed");
            model.hide(&mut change, 0, Some(1));
            model.store(0, 0, 0);
            drop(change);
            assert!(model.directory.change(&model.changing).is_err());
        };
        check(fail, |first, second| (first, second) == (&[1], &[1]));
    }

    /// What one handle left hidden, the next one shows, before it changes the same slot.
    #[test]
    fn loom_lookup_beside_a_failed_change_and_the_next_handle() {
        let replace = |model: &Model| {
            let mut failed = model.directory.change(&model.changing).expect("no change has failed");
            model.hide(&mut failed, 0, Some(1));
            model.store(0, 1, 2);
            drop(failed);
            model.directory.show();
            let changing = Changing::new(false);
            let mut change = model.directory.change(&changing).expect("no change of this handle has failed");
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
