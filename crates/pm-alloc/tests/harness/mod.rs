//! Shared by the tests of heaps: the same heap in each run, transactions that return a `TxError`, and repeatable random numbers.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses some of it; a test fails by panicking"
)]

use pm_alloc::{CheckReport, Heap, HeapOptions, Tx, TxError};
use pm_core::{Pmem, PoolOptions, Uuid};

/// Options with a fixed identity and seed, so that each run makes the same bytes.
pub(crate) fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7)
}

/// [`Heap::transaction`] with its error type fixed.
pub(crate) trait Transact<P: Pmem> {
    fn transact<R>(&self, f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, TxError>)
    -> Result<R, TxError>;
}

impl<P: Pmem> Transact<P> for Heap<P> {
    fn transact<R>(
        &self,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        self.transaction(f)
    }
}

/// The contents of a region.
pub(crate) fn bytes(region: &impl Pmem) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len_bytes()).unwrap()];
    region.load(0, &mut bytes);
    bytes
}

/// The report of a check that finds no corruption.
#[track_caller]
pub(crate) fn assert_clean<P: Pmem>(heap: &Heap<P>) -> CheckReport {
    let report = heap.check();
    assert!(report.is_clean(), "{report:?}");
    report
}

/// Knuth's linear congruential generator: the same numbers in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 33) % end
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}
