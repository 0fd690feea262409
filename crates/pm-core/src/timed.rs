//! Measures the time that an operation spends at the seam: in accesses, and in fences.

use crate::fault::MediumFault;
use crate::stopwatch::Stopwatch;
use crate::{FenceError, Pmem, forward_pmem};
use core::ptr::NonNull;
use std::time::Duration;

/// The time that calls of a [`Timed`] took, over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// In loads, stores, write-backs of lines and [`populate`](Pmem::populate).
    pub accesses: Duration,
    /// In [`fence`](Pmem::fence).
    pub fences: Duration,
}

/// A wrapper of an implementation of [`Pmem`] that measures the time of its calls, and forwards them. Each measured call reads the clock twice, which takes
/// some 50 ns. A wrapper that is [off](Self::off) costs one predictable branch a call.
///
/// ```
/// use pm_core::{Pmem, Region, Timed};
/// let pmem = Timed::new(Region::anonymous(1 << 20)?);
/// pmem.store_nt(0, &[1; 1 << 16]);
/// pmem.fence()?;
/// let times = pmem.times();
/// println!("{:?} in stores, {:?} in the fence", times.accesses, times.fences);
/// # assert!(!times.accesses.is_zero());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Timed<P> {
    inner: P,
    accesses: Stopwatch,
    fences: Stopwatch,
}

impl<P: Pmem> Timed<P> {
    /// Wraps `inner`, and measures.
    #[must_use]
    pub const fn new(inner: P) -> Self {
        Self::switched(inner, true)
    }

    /// Wraps `inner`, and does not measure: for a type that is chosen before it is known whether times are asked for.
    #[must_use]
    pub const fn off(inner: P) -> Self {
        Self::switched(inner, false)
    }

    const fn switched(inner: P, is_on: bool) -> Self {
        Self { inner, accesses: Stopwatch::new(is_on), fences: Stopwatch::new(is_on) }
    }

    /// The times so far.
    #[must_use]
    pub fn times(&self) -> Times {
        Times { accesses: self.accesses.spent(), fences: self.fences.spent() }
    }

    /// The wrapped implementation.
    pub const fn get_ref(&self) -> &P {
        &self.inner
    }
}

impl<P: Pmem> Pmem for Timed<P> {
    forward_pmem!(|this| this.inner => len_bytes, grow_in_place, domain, is_writable, lock_writer, writer_lock, next_data);
    forward_pmem!(|this| this.inner => prefetch, prefetch_read);

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.accesses.time(|| self.inner.load(offset, out));
    }
    fn try_load(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        self.accesses.time(|| self.inner.try_load(offset, out))
    }
    /// What the caller does with the bytes is measured too.
    fn lend(&self, offset: u64, len_bytes: usize, with: &mut dyn FnMut(NonNull<[u8]>)) {
        self.accesses.time(|| self.inner.lend(offset, len_bytes, with));
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.accesses.time(|| self.inner.load_u64(offset))
    }
    fn load_words(&self, offset: u64, out: &mut [u64]) {
        self.accesses.time(|| self.inner.load_words(offset, out));
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.accesses.time(|| self.inner.store(offset, bytes));
    }
    fn try_store(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.accesses.time(|| self.inner.try_store(offset, bytes))
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.accesses.time(|| self.inner.store_nt(offset, bytes));
    }
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.accesses.time(|| self.inner.try_store_nt(offset, bytes))
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.accesses.time(|| self.inner.store_u64(offset, value));
    }
    fn store_words(&self, offset: u64, words: &[u64]) {
        self.accesses.time(|| self.inner.store_words(offset, words));
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.accesses.time(|| self.inner.store_u128(offset, value));
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.accesses.time(|| self.inner.compare_exchange_u64(offset, current, new))
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.accesses.time(|| self.inner.flush(offset, len_bytes));
    }
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        self.accesses.time(|| self.inner.try_flush(offset, len_bytes))
    }
    fn populate(&self, offset: u64, len_bytes: u64) {
        self.accesses.time(|| self.inner.populate(offset, len_bytes));
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.fences.time(|| self.inner.fence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn accesses_and_fences_are_measured_apart() {
        let pmem = Timed::new(Region::anonymous(1 << 16).unwrap());
        pmem.store_nt(0, &[7; 1 << 16]);
        let stored = pmem.times();
        assert!(!stored.accesses.is_zero());
        assert_eq!(stored.fences, Duration::ZERO);
        // A clock's step may be longer than one fence.
        while pmem.times().fences.is_zero() {
            pmem.fence().unwrap();
        }
        assert_eq!(pmem.times().accesses, stored.accesses);
    }

    #[test]
    fn nothing_is_measured_when_off() {
        let pmem = Timed::off(Region::anonymous(1 << 16).unwrap());
        pmem.store_nt(0, &[7; 1 << 16]);
        pmem.fence().unwrap();
        assert_eq!(pmem.times(), Times::default());
        let mut found = [0; 8];
        pmem.load(4096, &mut found);
        assert_eq!(found, [7; 8]);
    }
}
