//! The wrapper that delays accesses.

use super::cache::Cache;
use super::clock::{Clock, whole};
use super::cost::Access;
use super::error::EmulationError;
use super::machine::Machine;
use super::speed::Speed;
use crate::fault::MediumFault;
use crate::insn::{ticks, ticks_after_loads};
use crate::line::{LINE, lines_spanned};
use crate::{FenceError, Pmem, Region, forward_pmem};
use core::ptr::NonNull;
use crossbeam_utils::CachePadded;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A wrapper of an implementation of [`Pmem`] that delays each access, as [a slower memory](Speed) would. [The module](super) describes the model.
#[derive(Debug)]
pub struct Emulated<P> {
    inner: P,
    clock: Clock,
    /// The ticks that an access takes besides those that it measures.
    overhead: u64,
    read: Access,
    write: Access,
    barrier: u64,
    is_simulated: bool,
    cache: Option<Cache>,
    /// The moment, in ticks, until which the device serves earlier accesses.
    busy_until: CachePadded<AtomicU64>,
    counters: CachePadded<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    delayed: AtomicU64,
    late: AtomicU64,
    late_count: AtomicU64,
}

/// What the accesses to an [`Emulated`] have waited, over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulationCounts {
    /// The time for which accesses were delayed.
    pub delayed: Duration,
    /// The time by which accesses took longer than asked for: because the wrapped memory is slower, or because their thread was preempted for longer
    /// than the next accesses make up for.
    pub late: Duration,
    /// The number of these accesses.
    pub late_count: u64,
}

impl<P: Pmem> Emulated<P> {
    /// Wraps `inner`.
    ///
    /// # Errors
    /// As [`Speed::check`].
    pub fn new(inner: P, speed: &Speed) -> Result<Self, EmulationError> {
        speed.check()?;
        let clock = Machine::get()?.clock;
        Self::on(inner, clock, overhead(clock)?, speed)
    }

    /// Wraps `inner`, whatever the machine's own speed.
    fn on(inner: P, clock: Clock, overhead: u64, speed: &Speed) -> Result<Self, EmulationError> {
        let (read, write, barrier) = speed.in_ticks(clock)?;
        let cache = speed.cache_len_bytes().map(Cache::new);
        let is_simulated = speed.is_simulated();
        let (busy_until, counters) = (CachePadded::default(), CachePadded::default());
        Ok(Self { inner, clock, overhead, read, write, barrier, is_simulated, cache, busy_until, counters })
    }

    /// The wrapped implementation.
    pub const fn get_ref(&self) -> &P {
        &self.inner
    }

    /// What the accesses so far have waited.
    #[must_use]
    pub fn counts(&self) -> EmulationCounts {
        let Counters { delayed, late, late_count } = &*self.counters;
        EmulationCounts {
            delayed: self.clock.to_duration(delayed.load(Relaxed)),
            late: self.clock.to_duration(late.load(Relaxed)),
            late_count: late_count.load(Relaxed),
        }
    }

    /// Reads `len_bytes` bytes at `offset` by `access`.
    #[inline]
    fn read<R>(&self, offset: u64, len_bytes: u64, access: impl FnOnce() -> R) -> R {
        let begin = ticks();
        let result = access();
        let lines = match &self.cache {
            None => lines_spanned(offset, len_bytes),
            Some(cache) => cache.add(offset, len_bytes),
        };
        self.delay(begin, &self.read, lines);
        result
    }

    /// Sends the lines of `len_bytes` bytes at `offset` towards the medium by `access`.
    #[inline]
    fn write<R>(&self, offset: u64, len_bytes: u64, access: impl FnOnce() -> R) -> R {
        let begin = ticks();
        let result = access();
        self.delay(begin, &self.write, lines_spanned(offset, len_bytes));
        result
    }

    /// Stores through the cache by `access`.
    #[inline]
    fn store_cached<R>(&self, offset: u64, len_bytes: u64, access: impl FnOnce() -> R) -> R {
        let result = access();
        if let Some(cache) = &self.cache {
            cache.add(offset, len_bytes);
        }
        result
    }

    /// Delays an access that has begun at `begin`, in ticks, until its time has passed and the device has served it.
    #[inline]
    fn delay(&self, begin: u64, access: &Access, lines: u64) {
        if lines != 0 && !access.is_free() {
            self.delay_until(begin, access.cost.of(lines), whole(access.service * lines as f64));
        }
    }

    fn delay_until(&self, begin: u64, asked: u64, service: u64) {
        if self.is_simulated {
            let at = self.clock.simulated(begin);
            let end = self.serve(at, service).max(at + asked);
            self.clock.advance(end - at, ticks_after_loads() - begin + self.overhead);
            return;
        }
        let (begin, carry) = (begin.saturating_sub(self.overhead), Clock::carry());
        let at = begin.saturating_sub(carry);
        let due = self.serve(at, service).max(at + asked);
        let now = ticks_after_loads();
        if now < due {
            self.counters.delayed.fetch_add(due - now, Relaxed);
            let lost = self.clock.wait(now, due);
            if lost != 0 {
                self.count_late(lost);
            }
            return;
        }
        let own = now - begin;
        self.clock.set_carry(carry.min(now - due));
        // Without a latency the device may have been idle.
        if own > asked && asked != 0 {
            self.count_late(own - asked);
        }
    }

    /// Counts an access that has taken longer than asked for by these ticks.
    fn count_late(&self, ticks: u64) {
        self.counters.late.fetch_add(ticks, Relaxed);
        self.counters.late_count.fetch_add(1, Relaxed);
    }

    /// Lets the device serve an access of `service` ticks after the accesses before. Returns when it ends; 0 if bandwidth has no limit.
    #[inline]
    fn serve(&self, at: u64, service: u64) -> u64 {
        if service == 0 {
            return 0;
        }
        let end = |busy_until: u64| busy_until.max(at) + service;
        self.busy_until.fetch_update(Relaxed, Relaxed, |until| Some(end(until))).map_or(0, end)
    }
}

impl<P: Pmem> Pmem for Emulated<P> {
    forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data);
    forward_pmem!(|this| this.inner => prefetch, prefetch_read, populate);

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.read(offset, out.len() as u64, || self.inner.load(offset, out));
    }
    fn try_load(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        self.read(offset, out.len() as u64, || self.inner.try_load(offset, out))
    }
    fn lend(&self, offset: u64, len_bytes: usize, with: &mut dyn FnMut(NonNull<[u8]>)) {
        self.read(offset, len_bytes as u64, || ());
        self.inner.lend(offset, len_bytes, with);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.read(offset, 8, || self.inner.load_u64(offset))
    }
    fn load_words(&self, offset: u64, out: &mut [u64]) {
        self.read(offset, 8 * out.len() as u64, || self.inner.load_words(offset, out));
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.read(offset, 8, || self.inner.compare_exchange_u64(offset, current, new))
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.store_cached(offset, bytes.len() as u64, || self.inner.store(offset, bytes));
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.store_cached(offset, 8, || self.inner.store_u64(offset, value));
    }
    fn store_words(&self, offset: u64, words: &[u64]) {
        self.store_cached(offset, size_of_val(words) as u64, || self.inner.store_words(offset, words));
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.store_cached(offset, 16, || self.inner.store_u128(offset, value));
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes.len() as u64, || self.inner.store_nt(offset, bytes));
    }
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.write(offset, bytes.len() as u64, || self.inner.try_store_nt(offset, bytes))
    }
    fn try_store(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.store_cached(offset, bytes.len() as u64, || self.inner.try_store(offset, bytes))
    }
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        self.write(offset, len_bytes, || self.inner.try_flush(offset, len_bytes))
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.write(offset, len_bytes, || self.inner.flush(offset, len_bytes));
    }
    fn fence(&self) -> Result<(), FenceError> {
        let begin = ticks();
        let fenced = self.inner.fence();
        if self.barrier != 0 {
            self.delay_until(begin, self.barrier, 0);
        }
        fenced
    }
}

/// The ticks that an emulated access takes besides those that it measures; measured once.
fn overhead(clock: Clock) -> Result<u64, EmulationError> {
    static OVERHEAD: OnceLock<Result<u64, EmulationError>> = OnceLock::new();
    OVERHEAD.get_or_init(|| measure_overhead(clock)).clone()
}

/// The ticks that emulated accesses take longer than asked for.
fn measure_overhead(clock: Clock) -> Result<u64, EmulationError> {
    const COUNT: u64 = 1000;
    let latency = Duration::from_nanos(500);
    let speed = Speed::new().read_latency(latency).write_latency(latency);
    let region = Region::anonymous(64 << 10).map_err(|error| EmulationError::Memory(error.to_string()))?;
    region.populate(0, region.len_bytes());
    let emulated = Emulated::on(region, clock, 0, &speed)?;
    let round = |_| {
        let begin = ticks();
        let mut line = [0; LINE];
        (0..COUNT).for_each(|at| emulated.load(at * LINE as u64, &mut line));
        (ticks() - begin) as f64 / COUNT as f64
    };
    let took = (0..9).map(round).fold(f64::INFINITY, f64::min);
    // The caller's first access is not one of these.
    clock.set_carry(0);
    Ok(whole((took - clock.to_ticks(latency)).round()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overshoot_of_a_delay_that_nothing_makes_up_for_is_late() {
        let clock = Machine::get().unwrap().clock;
        let speed = Speed::new().read_latency(Duration::from_micros(2));
        let late_count = |clock| {
            let region = Region::anonymous(4096).unwrap();
            region.populate(0, 4096);
            let emulated = Emulated::on(region, clock, 0, &speed).unwrap();
            (0..200).for_each(|_| emulated.load(0, &mut [0; 8]));
            emulated.counts().late_count
        };
        // The counter is hardly ever read at the very tick.
        assert!(late_count(clock.without_carry()) > 100);
    }
}
