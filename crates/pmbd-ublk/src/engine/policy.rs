//! How an engine writes: the choices of PMBD's design space.

use super::mark::WriteBackMark;
use crate::buffer::{BufferOptions, Slots};

/// How the bytes of a write reach the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WriteScheme {
    /// Non-temporal stores, and a fence before the write completes. The fastest for requests of whole lines, because no line is loaded first.
    #[default]
    NonTemporal,
    /// Stores through the cache, a write-back of each line by the region's flush instruction, and a fence before the write completes. Reads that
    /// follow find the bytes in the cache, unless the instruction evicts them.
    WriteBack,
    /// Stores through the cache alone. Flush writes back the pages that were written since the last one, and FUA the bytes of its own request: the device
    /// reports a [write-back cache](super::WriteCache::WriteBack), which is the CPU's.
    ///
    /// The pages are recorded in DRAM. When a server is killed its record is lost, while its stores are still in the caches; a
    /// [`WriteBackMark`](super::WriteBackMark) tells the next server to write back the whole device.
    Deferred,
}

/// How an engine writes.
///
/// # Source
/// PMBD (MSST 2014), III-C, IV and Table III.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WritePolicy {
    /// The stores and the write-back.
    pub scheme: WriteScheme,
    /// Stores only the lines that change, for a medium whose writes are slow or wear it out. Each write costs a read of its range.
    pub only_changed: bool,
    /// Reads back each write and compares. A write whose bytes are not found fails with [`BlockError::Mismatch`](super::BlockError::Mismatch). The bytes
    /// may come from the cache, so this detects lost and stray stores, but not every fault of the medium.
    pub verify: bool,
}

impl From<WriteScheme> for WritePolicy {
    fn from(scheme: WriteScheme) -> Self {
        Self { scheme, ..Self::default() }
    }
}

/// How an engine writes, and what an earlier engine of the same device left.
#[derive(Debug, Default)]
pub struct WriteSetup {
    /// How bytes are stored on the device.
    pub policy: WritePolicy,
    /// The mark of the device. Pass it each time the device is opened for writing, whatever the policy.
    pub mark: Option<WriteBackMark>,
    /// Buffers before the device. They need a mark, and a scheme that is not deferred.
    pub buffers: Option<(BufferOptions, Slots)>,
    /// The slots of an earlier engine, if there are any. They count if the mark has their session.
    pub leftover: Option<Slots>,
}
