//! Counts the writes to each line at the seam, to measure the wear of the medium and its distribution over the lines.

use crate::fault::MediumFault;
use crate::{Coalescing, LineWrites, Pmem, forward_pmem};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// A wrapper of an implementation of [`Pmem`] that counts the writes to each line, and forwards all calls.
///
/// It keeps two counts:
///
/// * [`stored`](LineCounting::stored): every store, by any method. Consecutive stores *of one thread* to one line are one write ([`Coalescing`]). A
///   tool that traces the instructions of a program counts in the same way, so the counts can be compared with those of an allocator for volatile
///   memory. A failed compare and exchange is not counted.
/// * [`sent`](LineCounting::sent): every line sent towards the medium by a flush or a non-temporal store: [`Counts::lines`](crate::Counts::lines),
///   for each line. This is the wear of the medium if caches evict no line on their own. A flush of a clean line is counted too, because the wrapper
///   cannot detect that the line is clean.
///
/// Each store and flush takes a lock and updates a hash table, so the wrapper is not suitable for measurements of time.
///
/// ```
/// use pm_core::{LineCounting, Pmem, Region};
/// let pmem = LineCounting::new(Region::anonymous(1 << 20)?);
/// for count in 0..10_u64 {
///     pmem.store_u64(0, count); // one line, ten stores in a row
/// }
/// pmem.store(60, b"straddles"); // continues the write of that line, and begins a write of the next
/// pmem.persist(0, 128)?;
/// assert_eq!((pmem.stored().writes_to(0), pmem.stored().writes_to(64)), (1, 1));
/// pmem.persist(0, 8)?;
/// assert_eq!((pmem.sent().writes_to(0), pmem.sent().total_writes()), (2, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct LineCounting<P> {
    inner: P,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: HashMap<ThreadId, Coalescing>,
    stored: LineWrites,
    sent: LineWrites,
}

impl<P: Pmem> LineCounting<P> {
    /// Wraps `inner`, with all counts at zero.
    #[must_use]
    pub fn new(inner: P) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// The writes by stores, over all threads, since this wrapper was created or last [reset](LineCounting::reset).
    #[must_use]
    pub fn stored(&self) -> LineWrites {
        self.state().stored.clone()
    }

    /// The writes by flushes and non-temporal stores, over all threads, since this wrapper was created or last [reset](LineCounting::reset).
    #[must_use]
    pub fn sent(&self) -> LineWrites {
        self.state().sent.clone()
    }

    /// Resets all counts, so that the preparation of a measurement is not counted. The next store of each thread begins a new write.
    pub fn reset(&self) {
        *self.state() = State::default();
    }

    /// The wrapped implementation.
    pub const fn get_ref(&self) -> &P {
        &self.inner
    }

    fn count_store(&self, offset: u64, len_bytes: u64) {
        let State { streams, stored, .. } = &mut *self.state();
        streams.entry(thread::current().id()).or_default().store(offset, len_bytes, stored);
    }

    /// Ignores poisoning: an offset outside the region panics in the wrapped implementation before anything is counted, so no count is partial.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Pmem> Pmem for LineCounting<P> {
    forward_pmem!(|this| this.inner => len_bytes, grow_in_place, domain, is_writable, lock_writer, writer_lock, next_data, load);
    forward_pmem!(|this| this.inner => lend, try_load, load_u64, load_words, prefetch, prefetch_read, populate, fence);

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.inner.store(offset, bytes);
        self.count_store(offset, bytes.len() as u64);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.inner.store_nt(offset, bytes);
        self.count_store(offset, bytes.len() as u64);
        self.state().sent.add(offset, bytes.len() as u64);
    }
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.inner.try_store_nt(offset, bytes)?;
        self.count_store(offset, bytes.len() as u64);
        self.state().sent.add(offset, bytes.len() as u64);
        Ok(())
    }
    fn try_store(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.inner.try_store(offset, bytes)?;
        self.count_store(offset, bytes.len() as u64);
        Ok(())
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.inner.store_u64(offset, value);
        self.count_store(offset, 8);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.inner.store_u128(offset, value);
        self.count_store(offset, 16);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let exchanged = self.inner.compare_exchange_u64(offset, current, new)?;
        self.count_store(offset, 8);
        Ok(exchanged)
    }
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        self.inner.try_flush(offset, len_bytes)?;
        self.state().sent.add(offset, len_bytes);
        Ok(())
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.inner.flush(offset, len_bytes);
        self.state().sent.add(offset, len_bytes);
    }
}
