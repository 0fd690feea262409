//! The mark of a device whose completed writes may be in the caches only.

use super::error::WriteBackError;
use core::ops::Range;
use pm_core::{DirtyPages, FenceError, Pmem};

/// The offset of the generation in a mark.
const GENERATION_OFFSET: u64 = size_of::<u64>() as u64;

/// Two words of persistent memory outside a device. The first is not zero while the device's [deferred](super::WriteScheme::Deferred) writes may be in the
/// caches only, or while completed writes may be in buffers.
///
/// It outlives the server that set it, because stores outlive their process. A power failure may lose it, together with everything else that was in the
/// caches only: at that moment there is nothing to write back.
///
/// The second is the device's generation: while writes are in buffers it changes before each store of theirs to the device. It need not be durable, as
/// the buffers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteBackMark(u64);

impl WriteBackMark {
    /// The word of a device with deferred writes.
    pub const SET: u64 = u64::from_le_bytes(*b"UNFLUSHD");

    /// The mark in the two words at `offset`, a multiple of 16 or, in one line, of 8.
    #[must_use]
    pub const fn at(offset: u64) -> Self {
        Self(offset)
    }

    /// Its word: zero, [`SET`](Self::SET), or the session of buffers. Any other word counts as set.
    pub(crate) fn load<P: Pmem>(self, pmem: &P) -> u64 {
        pmem.load_u64(self.0)
    }

    /// Sets it. Costs a store; see the type for why that suffices.
    pub(super) fn set<P: Pmem>(self, pmem: &P, word: u64) {
        pmem.store_u64(self.0, word);
    }

    /// The generation of the device.
    pub(crate) fn generation<P: Pmem>(self, pmem: &P) -> u64 {
        pmem.load_u64(self.0 + GENERATION_OFFSET)
    }

    /// Changes the generation of the device.
    pub(super) fn set_generation<P: Pmem>(self, pmem: &P, generation: u64) {
        pmem.store_u64(self.0 + GENERATION_OFFSET, generation);
    }

    /// Clears it. All writes must be durable.
    ///
    /// # Durability
    /// When it returns, a power failure leaves the mark cleared, so that the next server need not write the device back.
    pub(super) fn clear<P: Pmem>(self, pmem: &P) -> Result<(), FenceError> {
        pmem.store_u64(self.0, 0);
        // After the mark: a server that is killed in between leaves a mark with the generation of its slots.
        pmem.store_u64(self.0 + GENERATION_OFFSET, 0);
        pmem.persist(self.0, 2 * size_of::<u64>() as u64)
    }
}

/// Writes back all lines of `range` that hold data, and waits for them.
pub(super) fn write_back_all<P: Pmem>(pmem: &P, range: Range<u64>) -> Result<(), WriteBackError> {
    /// The lines written back by one call, to keep each call short.
    const STEP_BYTES: u64 = 256 * DirtyPages::PAGE_BYTES;
    let mut at = range.start;
    while let Some(data) = pmem.next_data(at).filter(|data| data.start < range.end) {
        let end = data.end.min(range.end);
        at = data.start.max(at);
        while at < end {
            let len_bytes = STEP_BYTES.min(end - at);
            pmem.try_flush(at, len_bytes)?;
            at += len_bytes;
        }
        if at == range.end {
            break;
        }
    }
    Ok(pmem.fence()?)
}
