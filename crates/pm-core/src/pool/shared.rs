//! The state of a pool that all handles of its region share, in ordinary memory: the roots and the header that a handle is changing.

use super::format::Header;
use super::root_change::DirectoryState;
use super::{HeaderState, PoolError};
use crate::ProcessId;
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
use crossbeam_utils::Backoff;
#[cfg(all(loom, test))]
use loom::sync::{
    RwLock,
    atomic::{AtomicU64, Ordering, fence},
};
use std::sync::PoisonError;
#[cfg(not(all(loom, test)))]
use std::sync::RwLock;

/// Shared by all handles of a region that keeps a [`WriterLock`](crate::WriterLock). Without this lock, each handle has a state of its own.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) directory: DirectoryState,
    pub(super) header: SharedHeader,
}

/// Hides the header from readers while it is overwritten or restored: meanwhile one copy is incomplete, and the other is not necessarily durable.
#[derive(Debug)]
pub(super) struct SharedHeader {
    /// Odd while the header is overwritten or restored, and after such a change has failed. It only increases.
    version: AtomicU64,
    /// The pool's length at the current version; not set before the first change.
    pool_bytes: AtomicU64,
    /// While the version is odd: the header before the change, and the state of its copies.
    before: RwLock<Option<Box<(Header, HeaderState)>>>,
    /// The process whose handles change the header. A child of fork(2) has a copy of this state. In that copy, a change that was running at the fork
    /// never ends.
    process: ProcessId,
}

/// A header, the state of its copies, and the version at which they were read.
pub(super) struct HeaderSnapshot {
    pub(super) header: Header,
    pub(super) state: HeaderState,
    /// The version of the shared header.
    pub(super) version: u64,
}

impl Default for SharedHeader {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            pool_bytes: AtomicU64::new(0),
            before: RwLock::new(None),
            process: ProcessId::current(),
        }
    }
}

impl SharedHeader {
    /// Reads the header with `find`. If another handle is changing the header, returns the header and state before this change instead. A child of
    /// fork(2) always calls `find`, even if the header may be incomplete: it takes no lock, because it may have inherited the lock in locked state.
    pub(super) fn read(
        &self,
        find: impl Fn() -> Result<(Header, HeaderState), PoolError>,
    ) -> Result<HeaderSnapshot, PoolError> {
        let backoff = Backoff::new();
        loop {
            let version = self.version.load(Ordering::Acquire);
            let is_child = !self.process.is_current();
            if version.is_multiple_of(2) || is_child {
                let found = find();
                // A reader that has loaded a word of a newer header sees the version of that header in the load below.
                fence(Ordering::Acquire);
                if is_child || self.version.load(Ordering::Relaxed) == version {
                    return found.map(|(header, state)| HeaderSnapshot { header, state, version });
                }
            } else if let Some(before) = self.before.read().unwrap_or_else(PoisonError::into_inner).as_deref()
            {
                let (header, state) = *before;
                return Ok(HeaderSnapshot { header, state, version });
            }
            backoff.spin();
        }
    }

    /// The pool's current length, for a handle that read the length `found_bytes` at `version`.
    pub(super) fn pool_bytes(&self, found_bytes: u64, version: u64) -> u64 {
        let is_unchanged = self.version.load(Ordering::Acquire) == version;
        if is_unchanged { found_bytes } else { self.pool_bytes.load(Ordering::Acquire) }
    }

    /// Hides the header: from now on readers get `before` and `state`, the header and the state of its copies. Call this before overwriting a copy.
    pub(super) fn hide(&self, before: &Header, state: HeaderState) {
        if !self.is_hidden() {
            *self.before.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new((*before, state)));
            self.pool_bytes.store(before.pool_bytes, Ordering::Release);
            // A reader that loads the new version also loads this length.
            self.version.fetch_add(1, Ordering::Release);
            // Orders the new version before all stores to the header.
            fence(Ordering::Release);
        }
    }

    /// Shows the header to readers again, if this handle or a handle that failed has hidden it. Call this when the header is durable.
    pub(super) fn show(&self, pool_bytes: u64) {
        if self.is_hidden() {
            self.pool_bytes.store(pool_bytes, Ordering::Release);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    fn is_hidden(&self) -> bool {
        !self.version.load(Ordering::Relaxed).is_multiple_of(2)
    }
}

/// Model checks of a reader concurrent with a handle that extends the pool: a load returns every value that the memory model allows. The words of the
/// header are stored and loaded relaxed, because no stronger order holds on every architecture. Only with `--cfg loom`: `cargo xtask test loom`.
///
/// The writer is the main thread, which runs first, because hiding begins with a load of the version: loom does not switch threads between a thread's
/// load of an atomic and the thread's next access to this atomic. The reader's loads may still return any earlier store that the model allows.
#[cfg(all(loom, test))]
mod tests {
    use super::*;
    use crate::pool::header;
    use loom::sync::Arc;
    use loom::thread;

    const OLD_BYTES: u64 = 1 << 15;
    const NEW_BYTES: u64 = 1 << 16;

    /// A header of two words, each of which holds the pool's length.
    struct Model {
        shared: SharedHeader,
        words: [AtomicU64; 2],
    }

    fn header(pool_bytes: u64) -> Header {
        header::new_header(pool_bytes, 8192, uuid::Uuid::from_bytes([1; 16]), 0).expect("a possible layout")
    }

    impl Model {
        fn new() -> Arc<Self> {
            let words = core::array::from_fn(|_| AtomicU64::new(OLD_BYTES));
            Arc::new(Self { shared: SharedHeader::default(), words })
        }

        /// Hides, writes and shows the header, as [`Pool::extend`](crate::Pool::extend) does.
        fn extend(&self, from_bytes: u64, to_bytes: u64) {
            self.shared.hide(&header(from_bytes), HeaderState::Intact);
            self.words.iter().for_each(|word| word.store(to_bytes, Ordering::Relaxed));
            self.shared.show(to_bytes);
        }

        fn read(&self) -> HeaderSnapshot {
            let find = || match self.words.each_ref().map(|word| word.load(Ordering::Relaxed)) {
                [first, second] if first == second => Ok((header(first), HeaderState::Intact)),
                _ => Err(PoolError::NotAPool),
            };
            self.shared.read(find).expect("no incomplete header is found")
        }
    }

    /// Runs `write` concurrently with a thread that runs `read`.
    fn check(write: fn(&Model), read: fn(&Model)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Model::new();
            let other = Arc::clone(&model);
            let reader = thread::spawn(move || read(&other));
            write(&model);
            reader.join().expect("no thread panics");
        });
    }

    #[test]
    fn loom_length_during_extension_is_old_or_new() {
        check(
            |model| model.extend(OLD_BYTES, NEW_BYTES),
            |model| {
                let found = model.shared.pool_bytes(OLD_BYTES, 0);
                assert!([OLD_BYTES, NEW_BYTES].contains(&found), "the pool has {found} bytes");
            },
        );
    }

    #[test]
    fn loom_header_during_extension_is_complete() {
        check(
            |model| model.extend(OLD_BYTES, NEW_BYTES),
            |model| {
                let found = model.read();
                let length = model.shared.pool_bytes(found.header.pool_bytes, found.version);
                assert!([OLD_BYTES, NEW_BYTES].contains(&length), "the pool has {length} bytes");
                assert!(
                    found.header.pool_bytes <= length,
                    "{} bytes, then {length}",
                    found.header.pool_bytes
                );
            },
        );
    }

    #[test]
    fn loom_lengths_during_two_extensions_never_decrease() {
        check(
            |model| {
                model.extend(OLD_BYTES, NEW_BYTES);
                model.extend(NEW_BYTES, 2 * NEW_BYTES);
            },
            |model| {
                let [first, second] = core::array::from_fn(|_| model.shared.pool_bytes(OLD_BYTES, 0));
                assert!(first <= second, "{first} bytes, then {second}");
                let is_known = |found| [OLD_BYTES, NEW_BYTES, 2 * NEW_BYTES].contains(&found);
                assert!(is_known(first) && is_known(second), "{first} bytes, then {second}");
            },
        );
    }
}
