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

/// Random numbers: xorshift64*.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        // The first numbers are discarded: those of small seeds are similar.
        for _ in 0..5 {
            rng.next();
        }
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
