//! Shared by the tests of heaps: options that make the same bytes in each run, transactions that return a `TxError`, and repeatable random numbers.

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

/// Asserts that a check finds no corruption. Returns its report.
#[track_caller]
pub(crate) fn assert_clean<P: Pmem>(heap: &Heap<P>) -> CheckReport {
    let report = heap.check();
    assert!(report.is_clean(), "{report:?}");
    report
}
