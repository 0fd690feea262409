//! The files that the kernel knows.

use fuser::{FileHandle, OpenAccMode, OpenFlags};
use pm_core::Pmem;
use pm_fs::Handle;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the kernel calls an open file: [`MAPPABLE`] if it may be mapped to be stored to.
const NOT_MAPPABLE: FileHandle = FileHandle(0);
/// See [`NOT_MAPPABLE`].
const MAPPABLE: FileHandle = FileHandle(1);

/// The files that the kernel knows, by their numbers. They exist as long as it knows them.
#[derive(Debug)]
pub(crate) struct KnownFiles<P: Pmem>(Mutex<HashMap<u64, Known<P>>>);

impl<P: Pmem> Default for KnownFiles<P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A file that the kernel knows.
#[derive(Debug)]
struct Known<P: Pmem> {
    handle: Handle<P>,
    /// The number of the kernel's references.
    references: u64,
    /// The number of times that it is open for reading and writing: only then programs may store to maps of it that they share. What they have stored
    /// is in the kernel alone until it is written back, at last before the kernel releases the open file.
    mappable: u64,
}

impl<P: Pmem> KnownFiles<P> {
    /// A file that the kernel knows.
    pub(crate) fn find(&self, ino: u64) -> Option<Handle<P>> {
        self.lock().get(&ino).map(|known| known.handle.clone())
    }

    /// Notes that the kernel has another reference to a file.
    pub(crate) fn add(&self, handle: Handle<P>) {
        let ino = handle.ino();
        self.lock().entry(ino).or_insert(Known { handle, references: 0, mappable: 0 }).references += 1;
    }

    /// Notes that the kernel has so many references less. With the last one this frees a file that has no name.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        let mut known = self.lock();
        let is_last = known.get_mut(&ino).is_some_and(|known| {
            known.references = known.references.saturating_sub(count);
            known.references == 0
        });
        let forgotten = if is_last { known.remove(&ino) } else { None };
        drop(known);
        drop(forgotten);
    }

    /// Notes that a file is opened, and returns what the kernel calls it.
    pub(crate) fn open(&self, ino: u64, flags: OpenFlags) -> FileHandle {
        match self.lock().get_mut(&ino) {
            Some(known) if flags.acc_mode() == OpenAccMode::O_RDWR => {
                known.mappable += 1;
                MAPPABLE
            }
            _ => NOT_MAPPABLE,
        }
    }

    /// Notes that an open file is released.
    pub(crate) fn release(&self, ino: u64, open: FileHandle) {
        if open == MAPPABLE
            && let Some(known) = self.lock().get_mut(&ino)
        {
            known.mappable = known.mappable.saturating_sub(1);
        }
    }

    /// Whether the kernel may have data of a file that it has not written yet.
    pub(crate) fn is_mappable(&self, ino: u64) -> bool {
        self.lock().get(&ino).is_some_and(|known| known.mappable > 0)
    }

    /// A panic under the lock leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Known<P>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
