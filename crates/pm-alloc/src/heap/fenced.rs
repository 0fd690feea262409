//! The region of an open heap: a failed fence on it stops the heap.

use crate::log::Log;
use pm_core::{Domain, FenceError, Pmem};

/// The region below a heap, for everything that the heap stores. After a failed fence the log takes no commit any more, whichever part
/// of the heap fenced, and whatever it does with the error.
#[derive(Debug)]
pub(crate) struct Fenced<'h, P> {
    pmem: &'h P,
    log: &'h Log,
}

impl<'h, P: Pmem> Fenced<'h, P> {
    pub(super) const fn new(pmem: &'h P, log: &'h Log) -> Self {
        Self { pmem, log }
    }
}

impl<P: Pmem> Pmem for Fenced<'_, P> {
    #[inline]
    fn len_bytes(&self) -> u64 {
        self.pmem.len_bytes()
    }
    #[inline]
    fn domain(&self) -> Domain {
        self.pmem.domain()
    }
    #[inline]
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.pmem.load(offset, out);
    }
    #[inline]
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.pmem.store(offset, bytes);
    }
    #[inline]
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.pmem.store_nt(offset, bytes);
    }
    #[inline]
    fn load_u64(&self, offset: u64) -> u64 {
        self.pmem.load_u64(offset)
    }
    #[inline]
    fn store_u64(&self, offset: u64, value: u64) {
        self.pmem.store_u64(offset, value);
    }
    #[inline]
    fn store_u128(&self, offset: u64, value: u128) {
        self.pmem.store_u128(offset, value);
    }
    #[inline]
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.pmem.compare_exchange_u64(offset, current, new)
    }
    #[inline]
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.pmem.flush(offset, len_bytes);
    }
    #[inline]
    fn prefetch(&self, offset: u64) {
        self.pmem.prefetch(offset);
    }
    #[inline]
    fn fence(&self) -> Result<(), FenceError> {
        let fenced = self.pmem.fence();
        if let Err(error) = &fenced {
            self.log.fail(error.clone().into());
        }
        fenced
    }
}
