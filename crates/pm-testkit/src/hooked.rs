//! A region with a hook at its calls.

use core::ops::Range;
use pm_core::{Domain, FenceError, Pmem, WriterGuard, forward_pmem};
use std::sync::Arc;

/// What a hook does at the calls of a region. Each method by default only makes the call.
///
/// A method that makes no call on the region replaces the call.
pub trait Hook<R: Pmem> {
    /// The domain of the region.
    fn domain(&self, region: &R) -> Domain {
        region.domain()
    }

    /// Acquires the writer lock.
    fn lock_writer(&self, region: &R) -> Option<WriterGuard> {
        region.lock_writer()
    }

    /// Runs before the bytes of this range are loaded, by a call that is not atomic.
    fn before_load(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Runs before the word at this offset is loaded.
    fn before_load_u64(&self, offset: u64) {
        let _ = offset;
    }

    /// Runs before the word with this index of several words is loaded, in place of [`before_load_u64`](Self::before_load_u64).
    fn before_load_words(&self, offset: u64, index: usize) {
        let _ = index;
        self.before_load_u64(offset);
    }

    /// Runs before this range is stored to.
    fn before_store(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Whether a store to this range reaches the region.
    fn keeps_store(&self, range: Range<u64>) -> bool {
        let _ = range;
        true
    }

    /// Runs after this range was stored to.
    fn after_store(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Runs before this range is stored to around the cache, before [`before_store`](Self::before_store).
    fn before_store_nt(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Runs before this range is flushed.
    fn before_flush(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Runs after this range was flushed.
    fn after_flush(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Fences.
    ///
    /// # Errors
    /// Those of the region, or those of the hook.
    #[track_caller]
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        region.fence()
    }
}

/// A hook that the test keeps, too.
impl<R: Pmem, H: Hook<R>> Hook<R> for Arc<H> {
    fn domain(&self, region: &R) -> Domain {
        (**self).domain(region)
    }
    fn lock_writer(&self, region: &R) -> Option<WriterGuard> {
        (**self).lock_writer(region)
    }
    fn before_load(&self, range: Range<u64>) {
        (**self).before_load(range);
    }
    fn before_load_u64(&self, offset: u64) {
        (**self).before_load_u64(offset);
    }
    fn before_load_words(&self, offset: u64, index: usize) {
        (**self).before_load_words(offset, index);
    }
    fn before_store(&self, range: Range<u64>) {
        (**self).before_store(range);
    }
    fn keeps_store(&self, range: Range<u64>) -> bool {
        (**self).keeps_store(range)
    }
    fn after_store(&self, range: Range<u64>) {
        (**self).after_store(range);
    }
    fn before_store_nt(&self, range: Range<u64>) {
        (**self).before_store_nt(range);
    }
    fn before_flush(&self, range: Range<u64>) {
        (**self).before_flush(range);
    }
    fn after_flush(&self, range: Range<u64>) {
        (**self).after_flush(range);
    }
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        (**self).fence(region)
    }
}

/// A region and its hook.
#[derive(Debug)]
pub struct Hooked<R, H> {
    /// The region.
    pub region: R,
    /// The hook.
    pub hook: H,
}

impl<R: Pmem, H: Hook<R>> Hooked<R, H> {
    /// A region with this hook.
    pub const fn new(region: R, hook: H) -> Self {
        Self { region, hook }
    }

    fn store_with(&self, offset: u64, len: usize, store: impl FnOnce()) {
        let range = offset..offset + len as u64;
        self.hook.before_store(range.clone());
        if self.hook.keeps_store(range.clone()) {
            store();
        }
        self.hook.after_store(range);
    }
}

impl<R: Pmem, H: Hook<R>> Pmem for Hooked<R, H> {
    forward_pmem!(|this| this.region => len_bytes, grow_in_place, is_writable, writer_lock, next_data, prefetch, prefetch_read, populate);

    fn domain(&self) -> Domain {
        self.hook.domain(&self.region)
    }

    fn lock_writer(&self) -> Option<WriterGuard> {
        self.hook.lock_writer(&self.region)
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.hook.before_load(offset..offset + out.len() as u64);
        self.region.load(offset, out);
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.store_with(offset, bytes.len(), || self.region.store(offset, bytes));
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.hook.before_store_nt(offset..offset + bytes.len() as u64);
        self.store_with(offset, bytes.len(), || self.region.store_nt(offset, bytes));
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.hook.before_load_u64(offset);
        self.region.load_u64(offset)
    }

    fn load_words(&self, offset: u64, out: &mut [u64]) {
        for (index, (at, word)) in (offset..).step_by(size_of::<u64>()).zip(out).enumerate() {
            self.hook.before_load_words(at, index);
            *word = self.region.load_u64(at);
        }
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.store_with(offset, size_of::<u64>(), || self.region.store_u64(offset, value));
    }

    fn store_u128(&self, offset: u64, value: u128) {
        self.store_with(offset, size_of::<u128>(), || self.region.store_u128(offset, value));
    }

    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.hook.before_store(offset..offset + size_of::<u64>() as u64);
        self.region.compare_exchange_u64(offset, current, new)
    }

    fn flush(&self, offset: u64, len_bytes: u64) {
        self.hook.before_flush(offset..offset + len_bytes);
        self.region.flush(offset, len_bytes);
        self.hook.after_flush(offset..offset + len_bytes);
    }

    fn fence(&self) -> Result<(), FenceError> {
        self.hook.fence(&self.region)
    }
}
