//! A region with a hook at its calls, for tests of failing fences and of what other threads see.

#![allow(dead_code, reason = "each test program uses some of it")]

use pm_core::{Domain, FenceError, Pmem};

/// Functions that run at calls of a region.
pub(crate) trait Hook<R: Pmem> {
    /// Runs before a word is loaded.
    fn before_load_u64(&self) {}

    /// Runs before something is stored at this offset.
    fn before_store(&self, _offset: u64) {}

    /// Runs after something was stored at this offset.
    fn after_store(&self, _offset: u64) {}

    /// Runs after a flush.
    fn after_flush(&self) {}

    /// Runs instead of a fence.
    #[track_caller]
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        region.fence()
    }
}

/// A region and its hook.
pub(crate) struct Hooked<R, H> {
    pub(crate) region: R,
    pub(crate) hook: H,
}

impl<R: Pmem, H: Hook<R>> Hooked<R, H> {
    fn store_with(&self, offset: u64, store: impl FnOnce()) {
        self.hook.before_store(offset);
        store();
        self.hook.after_store(offset);
    }
}

impl<R: Pmem, H: Hook<R>> Pmem for Hooked<R, H> {
    fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }
    fn domain(&self) -> Domain {
        self.region.domain()
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.region.load(offset, out);
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.store_with(offset, || self.region.store(offset, bytes));
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.store_with(offset, || self.region.store_nt(offset, bytes));
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.hook.before_load_u64();
        self.region.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.store_with(offset, || self.region.store_u64(offset, value));
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.store_with(offset, || self.region.store_u128(offset, value));
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.hook.before_store(offset);
        self.region.compare_exchange_u64(offset, current, new)
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.region.flush(offset, len_bytes);
        self.hook.after_flush();
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.hook.fence(&self.region)
    }
}
