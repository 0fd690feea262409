//! What all handles of a region know of its pool in ordinary memory, and readers of the header beside a handle that extends the pool.

use super::format::Header;
use super::root_change::Directory;
use super::{HeaderState, PoolError};
use crate::ProcessId;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{PoisonError, RwLock};

/// Shared by all handles of a region that keeps a [`WriterLock`](crate::WriterLock), or else of one handle alone.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(super) directory: Directory,
    pub(super) header: SharedHeader,
}

/// Hides a header that is being written over or restored: meanwhile one copy of a sound pool is not whole, and another one may not be durable.
#[derive(Debug)]
pub(super) struct SharedHeader {
    /// Odd while the header is written over, and after that failed half-way. It never goes back.
    version: AtomicU64,
    /// The pool's length as of this version, unless it is the first.
    pool_bytes: AtomicU64,
    /// While the version is odd, the header before, and the state in which it was found.
    before: RwLock<Option<Box<(Header, HeaderState)>>>,
    /// The process that writes over it. A child of fork(2) has a copy in which what was going on never ends.
    process: ProcessId,
}

/// A header as a handle found it.
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) state: HeaderState,
    /// That of the shared one.
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
    /// What `find` finds, or what it would have found before another handle began to write over it. In a child of the process that does,
    /// what it finds in the middle of that: the child could inherit the lock locked.
    pub(super) fn read(
        &self,
        find: impl Fn() -> Result<(Header, HeaderState), PoolError>,
    ) -> Result<Found, PoolError> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let is_child = !self.process.is_current();
            if version.is_multiple_of(2) || is_child {
                let found = find();
                // A reader that has loaded a word of a newer header sees its version here.
                fence(Ordering::Acquire);
                if is_child || self.version.load(Ordering::Relaxed) == version {
                    return found.map(|(header, state)| Found { header, state, version });
                }
            } else if let Some(before) = self.before.read().unwrap_or_else(PoisonError::into_inner).as_deref()
            {
                let (header, state) = *before;
                return Ok(Found { header, state, version });
            }
        }
    }

    /// The pool's length, for a handle that found it to be `found_bytes` in `version`.
    pub(super) fn pool_bytes(&self, found_bytes: u64, version: u64) -> u64 {
        let is_as_found = self.version.load(Ordering::Acquire) == version;
        if is_as_found { found_bytes } else { self.pool_bytes.load(Ordering::Acquire) }
    }

    /// To be called before a copy of the header `before` is written over, which was found in `state`.
    pub(super) fn hide(&self, before: &Header, state: HeaderState) {
        if !self.is_hidden() {
            *self.before.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new((*before, state)));
            self.pool_bytes.store(before.pool_bytes, Ordering::Release);
            self.version.fetch_add(1, Ordering::Relaxed);
            // Before any store to the header.
            fence(Ordering::Release);
        }
    }

    /// Shows the header if it was hidden, also if that was by another handle that failed. To be called when it is durable.
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
