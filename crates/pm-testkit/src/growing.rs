//! A region in memory that can grow in place.

use pm_core::{Domain, FenceError, GrowError, Pmem, WriterGuard, forward_pmem};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The last page of the medium: its first word is the length of the file.
const LENGTH_BYTES: u64 = 4096;

/// The front part of another region, which can grow in place up to the last page: as the mapping of a file. The last page has the file's length, which a
/// growth makes durable before it returns, so that a simulated crash leaves the old length or the new one.
#[derive(Debug)]
pub struct Growing<P: Pmem> {
    region: P,
    len_bytes: AtomicU64,
}

impl<P: Pmem> Growing<P> {
    /// The file in `region`. Its length is the one that it has grown to there, or `len_bytes` if it has never grown.
    #[must_use]
    pub fn new(region: P, len_bytes: u64) -> Self {
        let at = region.len_bytes() - LENGTH_BYTES;
        let grown = region.load_u64(at);
        if grown > 0 {
            // A killed process may have left a length that is not durable; a fault that maps a block makes it so.
            region.persist(at, 8).expect("fences of a medium in memory do not fail");
        }
        let len_bytes = len_bytes.max(grown);
        assert!(len_bytes <= at, "a part of the region");
        Self { region, len_bytes: AtomicU64::new(len_bytes) }
    }

    /// The length of a medium for files of up to `file_bytes` bytes.
    #[must_use]
    pub const fn medium_bytes(file_bytes: u64) -> u64 {
        file_bytes + LENGTH_BYTES
    }

    /// The region, after a check that it is long enough for an access.
    fn at(&self, offset: u64, len: usize) -> &P {
        assert!(offset + len as u64 <= self.len_bytes(), "{len} bytes at {offset}");
        &self.region
    }
}

impl<P: Pmem> Pmem for Growing<P> {
    forward_pmem!(|this| this.region => is_writable, writer_lock);

    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    fn grow_in_place(&self, len_bytes: u64) -> Result<(), GrowError> {
        let at = self.region.len_bytes() - LENGTH_BYTES;
        if len_bytes > at {
            return Err(GrowError::NoSpace { len_bytes });
        }
        self.region.store_u64(at, len_bytes);
        self.region.persist(at, 8)?;
        self.len_bytes.fetch_max(len_bytes, Ordering::AcqRel);
        Ok(())
    }

    fn domain(&self) -> Domain {
        self.region.domain()
    }

    fn lock_writer(&self) -> Option<WriterGuard> {
        self.region.lock_writer()
    }

    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let end = self.len_bytes();
        let data = self.region.next_data(offset)?;
        (data.start < end).then(|| data.start..data.end.min(end))
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.at(offset, out.len()).load(offset, out);
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.at(offset, bytes.len()).store(offset, bytes);
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.at(offset, bytes.len()).store_nt(offset, bytes);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.at(offset, 8).load_u64(offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.at(offset, 8).store_u64(offset, value);
    }

    fn store_u128(&self, offset: u64, value: u128) {
        self.at(offset, 16).store_u128(offset, value);
    }

    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.at(offset, 8).compare_exchange_u64(offset, current, new)
    }

    fn flush(&self, offset: u64, len_bytes: u64) {
        self.at(offset, 0).flush(offset, len_bytes);
    }

    fn fence(&self) -> Result<(), FenceError> {
        self.region.fence()
    }
}
