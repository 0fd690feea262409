//! What is known of an object that has handles: where its chunks are, its lock, and its version for readers.

use crate::error::ObjectError;
use crate::format::short;
use crate::volume::object::ObjectRef;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// The number of chunks of a segment of places.
const SEGMENT: usize = 256;

/// Where a chunk is: not known yet.
const UNKNOWN: u64 = 0;

/// It is zeroes. Offsets are multiples of 64.
const HOLE: u64 = 1;

/// The lowest bit of a slot of the file, of which the number is above it.
const IN_FILE: u64 = 2;

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is zeroes.
    Hole,
    /// At this offset.
    At(u64),
    /// In this slot of the file.
    InFile(u64),
}

type Segment = Box<[AtomicU64; SEGMENT]>;

/// An object that has handles. Readers take no lock: they copy, and then compare the version. What a load of one chunk needs is in the first line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Control {
    /// Odd while contents change.
    version: AtomicU64,
    /// The place of the first chunk.
    first: AtomicU64,
    /// The length of the contents.
    pub(crate) len_bytes: u64,
    /// The length of the chunks, as in `object`.
    pub(crate) chunk_bytes: u64,
    /// The places of all chunks of an object that has more than one, in segments that are made when they are needed.
    segments: Box<[OnceLock<Segment>]>,
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
        let chunks = object.chunks(len_bytes);
        let segments = if chunks <= 1 { 0 } else { chunks.div_ceil(SEGMENT as u64) };
        Self {
            chunk_bytes: object.chunk_bytes,
            object,
            len_bytes,
            version: AtomicU64::new(0),
            life: AtomicU8::new(Life::Live as u8),
            changes: Mutex::new(()),
            first: AtomicU64::new(UNKNOWN),
            segments: (0..segments).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The number of chunks.
    pub(crate) const fn chunks(&self) -> u64 {
        self.object.chunks(self.len_bytes)
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

    /// Where a chunk is, if that is known.
    #[inline]
    pub(crate) fn place(&self, index: u64) -> Option<Place> {
        match self.word(index).load(Ordering::Acquire) {
            UNKNOWN => None,
            HOLE => Some(Place::Hole),
            word if word & IN_FILE != 0 => Some(Place::InFile(word >> 2)),
            offset => Some(Place::At(offset)),
        }
    }

    /// Notes where a chunk is, unless that is known: a change meanwhile knows better.
    pub(crate) fn note_place(&self, index: u64, place: Place) {
        // An error is a place that is known.
        let _known =
            self.word(index).compare_exchange(UNKNOWN, encode(place), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Notes where a chunk is now, under the lock.
    fn set_place(&self, index: u64, place: Place) {
        self.word(index).store(encode(place), Ordering::Release);
    }

    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        if self.segments.is_empty() {
            return &self.first;
        }
        let index = short(index);
        let segment = self.segments[index / SEGMENT]
            .get_or_init(|| Box::new(core::array::from_fn(|_| AtomicU64::new(UNKNOWN))));
        &segment[index % SEGMENT]
    }
}

const fn encode(place: Place) -> u64 {
    match place {
        Place::Hole => HOLE,
        Place::At(offset) => offset,
        Place::InFile(slot) => slot << 2 | IN_FILE,
    }
}

/// The lock of an object that can be used.
#[derive(Debug)]
pub(crate) struct Locked<'c> {
    control: &'c Control,
    _guard: MutexGuard<'c, ()>,
}

impl Locked<'_> {
    /// Whether this is the lock of that object.
    pub(crate) fn is_of(&self, control: &Control) -> bool {
        core::ptr::eq(self.control, control)
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
    /// Notes where a chunk is now.
    pub(crate) fn set_place(&self, index: u64, place: Place) {
        self.control.set_place(index, place);
    }

    /// The change is durable, or has changed nothing: reads go on.
    pub(crate) fn end(mut self) {
        self.is_over = true;
        self.control.version.store(self.version + 2, Ordering::Release);
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.control.life.store(Life::Unknown as u8, Ordering::Release);
        }
    }
}
