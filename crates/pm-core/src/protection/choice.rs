//! The choice of a protection.

use super::stray::StrayPolicy;
use crate::Medium;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use rustix::io::Errno;

/// How stray stores are kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Nothing is kept out: for comparisons, and for programs that choose at run time.
    None,
    /// The mapping is read-only, and mprotect(2) opens the pages of each store.
    PageTable,
    /// As [`PageTable`](Self::PageTable), but a thread closes the pages of many windows together, some time after they have closed.
    Async,
    /// The mapping is read-only, and the kernel stores: pwrite(2). On DAX it stores around the cache.
    Unmapped,
    /// The mapping is inaccessible. Each store, and each load, maps its pages at an address of its own, and unmaps them.
    PrivateMap,
    /// The mapping has a protection key of the CPU, and each store opens it to its own thread.
    Pkey,
}

impl Method {
    /// All that keep something out.
    pub const ALL: [Self; 5] = [Self::PageTable, Self::Async, Self::Unmapped, Self::PrivateMap, Self::Pkey];

    /// Its name, as [`from_str`](Self::from_str) takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::PageTable => "page-table",
            Self::Async => "async",
            Self::Unmapped => "unmapped",
            Self::PrivateMap => "private-map",
            Self::Pkey => "pkey",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = ProtectionError;

    fn from_str(name: &str) -> Result<Self, ProtectionError> {
        let found = Self::ALL.into_iter().chain([Self::None]).find(|method| method.name() == name);
        found.ok_or_else(|| ProtectionError::UnknownMethod(name.to_owned()))
    }
}

/// A method, and its options.
#[derive(Clone, Copy, Debug)]
pub struct Protection {
    pub(super) method: Method,
    pub(super) guards_reads: bool,
    pub(super) window_bytes: usize,
    pub(super) batch: Duration,
    pub(super) on_stray: StrayPolicy,
}

impl Protection {
    /// This method, with windows of the system's page, or of the region's if that is larger, for stores only.
    #[must_use]
    pub const fn new(method: Method) -> Self {
        let (batch, on_stray) = (Duration::from_millis(1), StrayPolicy::Abort);
        Self { method, guards_reads: false, window_bytes: 0, batch, on_stray }
    }

    /// Closes the region to stray loads too: each load opens a window, or is made by the kernel. [`Method::PrivateMap`] always does.
    #[must_use]
    pub const fn guard_reads(mut self, guards_reads: bool) -> Self {
        self.guards_reads = guards_reads;
        self
    }

    /// The size of the windows of [`Method::PageTable`] and [`Method::Async`], a power of two; at least the page of the system, and of the region. Larger
    /// ones take fewer system calls, and smaller ones would split huge pages.
    #[must_use]
    pub const fn window_bytes(mut self, window_bytes: usize) -> Self {
        self.window_bytes = window_bytes;
        self
    }

    /// The time after which [`Method::Async`] closes pages; by default a millisecond.
    #[must_use]
    pub const fn batch(mut self, batch: Duration) -> Self {
        self.batch = batch;
        self
    }

    /// What happens at a stray access.
    #[must_use]
    pub const fn on_stray(mut self, policy: StrayPolicy) -> Self {
        self.on_stray = policy;
        self
    }

    /// The method.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }
}

/// A region cannot be protected so.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtectionError {
    /// No method has this name.
    #[error("{0} is no protection; there are none, page-table, async, unmapped, private-map and pkey")]
    UnknownMethod(String),
    /// The kernel copies into ordinary files only.
    #[error("the kernel has no pwrite to {0}; use page-table, private-map or pkey")]
    NoWrite(Medium),
    /// The region is scratch: its stores must not reach the file.
    #[error(
        "a scratch region is protected by page-table or pkey only: the other methods would store to its file"
    )]
    Scratch,
    /// This CPU or kernel has no protection keys, or all are in use.
    #[error("protection keys are not to be had: {0}")]
    NoKey(Errno),
    /// A window has another size.
    #[error("windows have a power of two of bytes, not {0}")]
    WindowSize(usize),
    /// The thread that closes pages could not be started.
    #[error("no thread can be started to close pages")]
    NoThread,
    /// The mapping could not be closed.
    #[error("mprotect: {0}")]
    Mprotect(Errno),
}
