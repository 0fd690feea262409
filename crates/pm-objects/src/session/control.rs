//! What is known of an object that has handles: its chunks, its lock, and its version for readers.

use super::chunks::{Chunk, Chunks, Place};
use crate::error::ObjectError;
use crate::volume::hints::Hints;
use crate::volume::object::ObjectRef;
use core::ops::Range;
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(all(loom, test))]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(all(loom, test)))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// An object that has handles. Readers take no lock: they copy, and then compare the version. What a load of one chunk needs is together at its start.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    /// Odd while contents change.
    version: AtomicU64,
    /// The length of the contents.
    len_bytes: AtomicU64,
    chunks: Chunks,
    /// The length of the chunks, as in `object`.
    pub(crate) chunk_bytes: u32,
    /// [`Hints`].
    hints: AtomicU32,
    /// A [`Life`].
    life: AtomicU8,
    changes: Mutex<()>,
    pub(crate) object: ObjectRef,
}

/// Whether an object can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It can.
    Live,
    /// It was deleted or replaced.
    Deleted,
    /// A change of it has failed, and what it holds is unknown.
    Unknown,
}

impl Control {
    pub(crate) fn new(object: ObjectRef, len_bytes: u64) -> Self {
        Self {
            chunk_bytes: u32::try_from(object.chunk_bytes).expect("a chunk has at most 4 KiB"),
            hints: AtomicU32::new(object.hints.flags()),
            len_bytes: AtomicU64::new(len_bytes),
            version: AtomicU64::new(0),
            life: AtomicU8::new(Life::Live as u8),
            changes: Mutex::new(()),
            chunks: Chunks::new(),
            object,
        }
    }

    /// The length of the contents. A read compares the version after it.
    #[inline]
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    /// The number of chunks.
    pub(crate) fn chunk_count(&self) -> u64 {
        self.object.chunks(self.len_bytes())
    }

    /// The bytes of a chunk.
    pub(crate) fn chunk_range(&self, index: u64) -> Range<u64> {
        self.object.chunk(index, self.len_bytes())
    }

    /// What placement is told of the object.
    #[inline]
    pub(crate) fn hints(&self) -> Hints {
        Hints::of(self.hints.load(Ordering::Relaxed))
    }

    fn life(&self) -> Life {
        match self.life.load(Ordering::Acquire) {
            0 => Life::Live,
            1 => Life::Deleted,
            _ => Life::Unknown,
        }
    }

    /// Checks that the object can be used. The caller has its lock, or no lock can be taken.
    pub(crate) fn check(&self) -> Result<(), ObjectError> {
        match self.life() {
            Life::Live => Ok(()),
            Life::Deleted => Err(ObjectError::Deleted),
            Life::Unknown => Err(ObjectError::Poisoned),
        }
    }

    /// Keeps other changes out.
    pub(crate) fn lock(&self) -> Result<Locked<'_>, ObjectError> {
        // A panic of the program's closure leaves nothing changed.
        let guard = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        Ok(Locked { control: self, _guard: guard })
    }

    /// Keeps other changes out, unless there is one, or the object cannot be used.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let guard = match self.changes.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.check().ok()?;
        Some(Locked { control: self, _guard: guard })
    }

    /// Waits for a change in progress, and keeps others out, whatever its life.
    pub(crate) fn lock_to_read(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object has lost its name: no read and no change succeeds any more. Waits for a change in progress, which ends early if it waits for room.
    pub(crate) fn delete(&self) {
        self.life.store(Life::Deleted as u8, Ordering::Release);
        let _guard = self.lock_to_read();
        // Odd for good, so that reads without a lock fail from now on. After a change that has failed it is.
        self.version.fetch_or(1, Ordering::Release);
        order_before_reuse();
    }

    /// The version for a read that begins. `None` while contents change.
    #[inline]
    pub(crate) fn version(&self) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        version.is_multiple_of(2).then_some(version)
    }

    /// Whether nothing has changed since this version, so that what was copied is sound.
    #[inline]
    pub(crate) fn is_still(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// A chunk.
    #[inline]
    pub(crate) fn chunk(&self, index: u64) -> &Chunk {
        self.chunks.get(index)
    }

    /// The chunks in DRAM, with their frames. The caller has the lock, or the object was deleted.
    pub(crate) fn in_dram(&self) -> impl Iterator<Item = (u64, u64)> {
        self.chunks.known().filter_map(|(index, chunk)| match chunk.place() {
            Some(Place::InDram(frame)) => Some((index, frame)),
            _ => None,
        })
    }
}

/// The lock of an object that can be used.
#[derive(Debug)]
pub(crate) struct Locked<'c> {
    control: &'c Control,
    _guard: MutexGuard<'c, ()>,
}

impl Locked<'_> {
    /// The object.
    pub(crate) const fn control(&self) -> &Control {
        self.control
    }

    /// Whether this is the lock of that object.
    pub(crate) fn is_of(&self, control: &Control) -> bool {
        core::ptr::eq(self.control, control)
    }

    /// Notes where a chunk is.
    pub(crate) fn note_place(&self, index: u64, place: Place) {
        self.control.chunk(index).set_place(place);
    }

    /// Notes new hints.
    pub(crate) fn set_hints(&self, hints: Hints) {
        self.control.hints.store(hints.flags(), Ordering::Relaxed);
    }

    /// Begins a change of contents: readers wait until it ends.
    pub(crate) fn begin(&self) -> Changing<'_> {
        let version = self.control.version.load(Ordering::Relaxed);
        self.control.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        Changing { control: self.control, version, is_over: false }
    }

    /// Checks that the object was not deleted meanwhile, by a thread that waits for this lock.
    pub(crate) fn check(&self) -> Result<(), ObjectError> {
        self.control.check()
    }
}

/// A change in progress. If it is dropped without an end, by a panic or a failed fence, what the object holds is unknown.
pub(crate) struct Changing<'c> {
    control: &'c Control,
    version: u64,
    is_over: bool,
}

impl Changing<'_> {
    /// The object.
    pub(crate) const fn control(&self) -> &Control {
        self.control
    }

    /// Notes where a chunk is now.
    pub(crate) fn set_place(&self, index: u64, place: Place) {
        self.control.chunk(index).set_place(place);
    }

    /// A chunk is no more.
    pub(crate) fn forget_place(&self, index: u64) {
        self.control.chunk(index).forget_place();
    }

    /// Notes the new length.
    pub(crate) fn set_len_bytes(&self, len_bytes: u64) {
        self.control.len_bytes.store(len_bytes, Ordering::Release);
    }

    /// The change is durable, or has changed nothing: reads go on.
    pub(crate) fn end(mut self) {
        self.is_over = true;
        self.control.version.store(self.version + 2, Ordering::Release);
        order_before_reuse();
    }

    /// The change has failed, and has changed nothing: reads go on. But after a failed fence it is unknown which of its bytes are durable.
    pub(crate) fn fail(self, error: &ObjectError) {
        if !matches!(error, ObjectError::Fence(_) | ObjectError::Poisoned) {
            self.end();
        }
    }
}

/// A place that a chunk has left may get other bytes. A reader that copies some of them, because it knew the place before, sees the version after.
fn order_before_reuse() {
    fence(Ordering::Release);
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.control.life.store(Life::Unknown as u8, Ordering::Release);
        }
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use super::*;
    use crate::volume::object::ElementType;
    use loom::sync::Arc;
    use loom::thread;

    /// Two words in each place, which are equal if they are of one store: the number of the object in the tens.
    struct Media {
        slots: [[AtomicU64; 2]; 2],
        frame: [AtomicU64; 2],
    }

    impl Media {
        fn new() -> Self {
            let words = |value| [AtomicU64::new(value), AtomicU64::new(value)];
            Self { slots: [words(10), words(0)], frame: words(0) }
        }

        fn at(&self, place: Place) -> &[AtomicU64; 2] {
            match place {
                Place::At(offset) => &self.slots[crate::format::short(offset / 64 - 1)],
                Place::InDram(_) => &self.frame,
                Place::InFile(_) | Place::Hole => unreachable!("not in these models"),
            }
        }

        /// As the seam does, without an order.
        fn store(&self, place: Place, value: u64) {
            self.at(place).iter().for_each(|word| word.store(value, Ordering::Relaxed));
        }

        fn copy(&self, place: Place) -> [u64; 2] {
            [0, 1].map(|word| self.at(place)[word].load(Ordering::Relaxed))
        }
    }

    const FIRST: Place = Place::At(64);
    const SECOND: Place = Place::At(128);
    const FRAME: Place = Place::InDram(64);

    fn control(number: u64, place: Option<Place>) -> Control {
        let object = ObjectRef {
            offset: 64,
            number,
            element: ElementType { layout: 0, bytes: 16 },
            chunk_bytes: 64,
            hints: Hints::new(),
        };
        let control = Control::new(object, 16);
        if let Some(place) = place {
            control.chunk(0).set_place(place);
        }
        control
    }

    /// A load without a lock, as `ops::load` makes it. `None` if it has to be tried again.
    fn load(control: &Control, media: &Media) -> Option<u64> {
        let version = control.version()?;
        let copied = media.copy(control.chunk(0).place()?);
        if !control.is_still(version) {
            return None;
        }
        assert_eq!(copied[0], copied[1], "a part of a store");
        Some(copied[0])
    }

    fn read(control: &Control, media: &Media, allowed: &[u64]) {
        if let Some(loaded) = load(control, media) {
            assert!(allowed.contains(&loaded), "{loaded}");
        }
    }

    /// What enters a frame is copied before the place says so.
    fn enter(control: &Control, media: &Media) {
        let Some(locked) = control.try_lock() else { return };
        let Some(home @ Place::At(_)) = control.chunk(0).place() else { return };
        media.store(FRAME, media.copy(home)[0]);
        let changing = locked.begin();
        changing.set_place(0, FRAME);
        changing.end();
    }

    fn leave(control: &Control, home: Place) -> bool {
        let Some(locked) = control.try_lock() else { return false };
        if control.chunk(0).place() != Some(FRAME) {
            return false;
        }
        let changing = locked.begin();
        changing.set_place(0, home);
        changing.end();
        true
    }

    #[test]
    fn loom_a_load_sees_a_store_beside_an_admission_whole() {
        loom::model(|| {
            let shared = Arc::new((control(1, Some(FIRST)), Media::new()));
            let storing = Arc::clone(&shared);
            let store = thread::spawn(move || {
                let (control, media) = &*storing;
                let locked = control.lock().unwrap();
                let changing = locked.begin();
                media.store(FIRST, 11);
                if control.chunk(0).place() == Some(FRAME) {
                    media.store(FRAME, 11);
                }
                changing.end();
            });
            let admitting = Arc::clone(&shared);
            let admission = thread::spawn(move || enter(&admitting.0, &admitting.1));
            read(&shared.0, &shared.1, &[10, 11]);
            store.join().unwrap();
            admission.join().unwrap();
            assert_eq!(load(&shared.0, &shared.1), Some(11));
        });
    }

    /// A frame is taken from one object and given to another while a load copies from it.
    #[test]
    fn loom_a_load_sees_no_other_object_in_its_frame() {
        loom::model(|| {
            let media = Media::new();
            media.store(FRAME, 10);
            media.store(SECOND, 20);
            let shared = Arc::new((control(1, Some(FRAME)), control(2, Some(SECOND)), media));
            let evicting = Arc::clone(&shared);
            let eviction = thread::spawn(move || {
                let (one, two, media) = &*evicting;
                if leave(one, FIRST) {
                    enter(two, media);
                }
            });
            read(&shared.0, &shared.2, &[10]);
            eviction.join().unwrap();
        });
    }

    /// A chunk moves, and its slot gets the contents of another.
    #[test]
    fn loom_a_load_sees_no_other_object_in_its_slot() {
        loom::model(|| {
            let shared = Arc::new((control(1, Some(FIRST)), Media::new()));
            let moving = Arc::clone(&shared);
            let moved = thread::spawn(move || {
                let (control, media) = &*moving;
                media.store(SECOND, media.copy(FIRST)[0]);
                let locked = control.lock().unwrap();
                let changing = locked.begin();
                changing.set_place(0, SECOND);
                changing.end();
                media.store(FIRST, 20);
            });
            read(&shared.0, &shared.1, &[10]);
            moved.join().unwrap();
        });
    }

    /// A move has copied a chunk. It counts only if no store has changed the chunk since.
    #[test]
    fn loom_a_move_loses_no_store() {
        loom::model(|| {
            let shared = Arc::new((control(1, Some(FIRST)), Media::new()));
            let moving = Arc::clone(&shared);
            let moved = thread::spawn(move || {
                let (control, media) = &*moving;
                let Some(version) = control.version() else { return };
                media.store(SECOND, media.copy(FIRST)[0]);
                let Some(locked) = control.try_lock() else { return };
                if control.version() == Some(version) {
                    let changing = locked.begin();
                    changing.set_place(0, SECOND);
                    changing.end();
                }
            });
            {
                let (control, media) = &*shared;
                let locked = control.lock().unwrap();
                let changing = locked.begin();
                media.store(control.chunk(0).place().unwrap(), 11);
                changing.end();
            }
            moved.join().unwrap();
            assert_eq!(load(&shared.0, &shared.1), Some(11));
        });
    }

    /// An object is deleted, and its slot and its frame get the contents of another.
    #[test]
    fn loom_a_load_sees_nothing_after_a_deletion() {
        for place in [FIRST, FRAME] {
            loom::model(move || {
                let media = Media::new();
                media.store(FRAME, 10);
                let shared = Arc::new((control(1, Some(place)), media));
                let deleting = Arc::clone(&shared);
                let deletion = thread::spawn(move || {
                    deleting.0.delete();
                    deleting.1.store(place, 20);
                });
                read(&shared.0, &shared.1, &[10]);
                deletion.join().unwrap();
                assert_eq!(load(&shared.0, &shared.1), None);
                assert!(shared.0.try_lock().is_none());
            });
        }
    }
}
