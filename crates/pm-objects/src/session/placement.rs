//! How often chunks are used, and which of two is to be on the faster medium. No thread does this: loads and stores pay for it.
//!
//! The count of a chunk is in 16ths of a load. It is halved every *period*, of six loads for each chunk that is in use, so that old uses count less. A chunk takes
//! the place of another on a faster medium if what its loads would save is more than what the other's do, by a quarter, by the cost of the copy, and by
//! a number of loads, the *margin*. Where moves do not pay, as with uniform loads, the margin grows; when loads become slower, as when other chunks are in use, it is small again.

use crate::volume::hints::Tier;
use crate::volume::latencies::Latencies;
#[cfg(not(all(loom, test)))]
use core::sync::atomic::AtomicU32;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
#[cfg(all(loom, test))]
use loom::sync::atomic::AtomicU32;
use std::cell::Cell;
use std::sync::Mutex;

/// What a load and a store add to the count of a chunk.
pub(crate) const LOAD: u32 = 16;
pub(crate) const STORE: u32 = 128;

/// The greatest count.
const COUNT_MAX: u32 = 512;

/// One of so many loads is counted for the period's mean.
const SAMPLED: u64 = 16;

/// The loads of the shortest period.
const PERIOD_MIN: u64 = 4096;

/// The least and the greatest margin, in 16ths of a load.
const MARGIN_MIN: u64 = 2 * 16;
const MARGIN_MAX: u64 = 64 * 16;

thread_local! {
    /// The number of this thread's loads, for samples.
    static LOADS: Cell<u64> = const { Cell::new(0) };
}

/// The number of this thread's loads, with another one.
#[inline]
fn next_load() -> u64 {
    LOADS.with(|loads| {
        let count = loads.get().wrapping_add(1);
        loads.set(count);
        count
    })
}

/// What is known of the use of a chunk: the period in the upper half, and the count at that time in the lower. Zero if it was never used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heat(u32);

impl Heat {
    /// The count in a period.
    #[inline]
    const fn count(self, period: u32) -> u32 {
        let age = period.wrapping_sub(self.0 >> 16) & 0xffff;
        if age > 15 { 0 } else { (self.0 & 0xffff) >> age }
    }
}

/// What has changed since a period began.
#[derive(Debug, Default)]
struct Tallies {
    /// The loads, and what they cost, of those that were sampled.
    loads: AtomicU64,
    cost: AtomicU64,
    /// The chunks that were used.
    chunks: AtomicU64,
    moves: AtomicU64,
    move_cost: AtomicU64,
}

/// What the last periods have shown.
#[derive(Debug)]
struct Past {
    /// The cost of a load that counts as good, from the first period on.
    reference: Option<f64>,
    /// In 16ths of a load.
    margin: u64,
}

/// The use of all chunks, and what follows from it.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) latencies: Latencies,
    /// The number of the period.
    period: AtomicU64,
    /// The sampled loads that it has.
    length: AtomicU64,
    /// The margin, in 16ths of a load.
    margin: AtomicU64,
    tallies: Tallies,
    past: Mutex<Past>,
    /// Whether the pool was full, and nothing was freed since.
    is_pool_full: AtomicBool,
    /// What random numbers come from.
    randoms: AtomicU64,
    /// The moves of earlier periods.
    past_moves: AtomicU64,
}

impl Placement {
    pub(crate) fn new(latencies: Latencies) -> Self {
        Self {
            latencies,
            period: AtomicU64::new(1),
            length: AtomicU64::new(PERIOD_MIN / SAMPLED),
            margin: AtomicU64::new(MARGIN_MIN),
            tallies: Tallies::default(),
            is_pool_full: AtomicBool::new(false),
            randoms: AtomicU64::new(0),
            past_moves: AtomicU64::new(0),
            past: Mutex::new(Past { reference: None, margin: MARGIN_MIN }),
        }
    }

    #[inline]
    fn now(&self) -> u32 {
        (self.period.load(Relaxed) & 0xffff) as u32
    }

    /// Counts a use of a chunk. Returns its count. Uses by several threads at once may count as one.
    #[inline]
    pub(crate) fn note_use(&self, heat: &AtomicU32, weight: u32) -> u32 {
        let (old, now) = (heat.load(Relaxed), self.now());
        let count = (Heat(old).count(now) + weight).min(COUNT_MAX);
        let new = now << 16 | count;
        if new != old {
            heat.store(new, Relaxed);
            if old >> 16 != now {
                self.tallies.chunks.fetch_add(1, Relaxed);
            }
        }
        count
    }

    /// The count of a chunk.
    pub(crate) fn count(&self, heat: &AtomicU32) -> u32 {
        Heat(heat.load(Relaxed)).count(self.now())
    }

    /// Samples a load from a tier, and ends the period if it was the last one.
    #[inline]
    pub(crate) fn note_load(&self, tier: Tier) {
        if next_load().is_multiple_of(SAMPLED) {
            self.sample(tier);
        }
    }

    fn sample(&self, tier: Tier) {
        self.tallies.cost.fetch_add(self.latencies.of(tier), Relaxed);
        let loads = self.tallies.loads.fetch_add(1, Relaxed) + 1;
        if loads >= self.length.load(Relaxed)
            && let Ok(mut past) = self.past.try_lock()
        {
            self.end_period(&mut past);
        }
    }

    /// The number of moves so far.
    pub(crate) fn moves(&self) -> u64 {
        self.past_moves.load(Relaxed) + self.tallies.moves.load(Relaxed)
    }

    /// Notes a move between tiers, and what it has cost.
    pub(crate) fn note_move(&self, cost: u64) {
        self.tallies.moves.fetch_add(1, Relaxed);
        self.tallies.move_cost.fetch_add(cost, Relaxed);
    }

    fn end_period(&self, past: &mut Past) {
        let take = |tally: &AtomicU64| tally.swap(0, Relaxed);
        let loads = take(&self.tallies.loads);
        if loads < self.length.load(Relaxed) {
            // Another thread has ended it.
            self.tallies.loads.fetch_add(loads, Relaxed);
            return;
        }
        let mean = take(&self.tallies.cost) as f64 / loads as f64;
        let loads = (loads * SAMPLED) as f64;
        let moves = take(&self.tallies.moves);
        self.past_moves.fetch_add(moves, Relaxed);
        let moves = moves as f64 / loads;
        let move_cost = take(&self.tallies.move_cost) as f64 / loads;
        match past.reference {
            Some(reference) if mean <= 1.05 * reference => {
                if moves < 0.002 {
                    past.margin = (past.margin * 7 / 10).max(MARGIN_MIN);
                } else if reference - mean < move_cost {
                    past.margin = (past.margin * 3 / 2).min(MARGIN_MAX);
                }
                past.reference = Some(mean.min(1.005 * reference));
            }
            // The first period, or loads have become slower.
            _ => *past = Past { reference: Some(mean), margin: MARGIN_MIN },
        }
        self.margin.store(past.margin, Relaxed);
        let chunks = take(&self.tallies.chunks);
        self.length.store((6 * chunks).max(PERIOD_MIN) / SAMPLED, Relaxed);
        self.period.fetch_add(1, Relaxed);
    }

    /// Notes that the pool is full, or has room again.
    pub(crate) fn note_pool_full(&self, is_full: bool) {
        self.is_pool_full.store(is_full, Relaxed);
    }

    /// Whether the pool is full: then a chunk that moves up takes the place of another.
    pub(crate) fn is_pool_full(&self) -> bool {
        self.is_pool_full.load(Relaxed)
    }

    /// Whether a chunk with this count and home is to take the place in DRAM of one whose loads save so much, of as many bytes. Without one the place is free.
    pub(crate) fn is_to_enter(&self, count: u32, home: Tier, bytes: u64, other: Option<u64>) -> bool {
        let gain = self.latencies.gain(home, Tier::Dram);
        let Some(other) = other else { return gain > 0 };
        let own = u64::from(count) * gain;
        // What a pinned chunk saves is more than anything.
        own > other.saturating_add(other / 4 + 16 * self.latencies.copy_up(home, bytes))
            && own > other.saturating_add(self.margin.load(Relaxed) * gain)
    }

    /// What the loads of a chunk in DRAM save.
    pub(crate) fn value_in_dram(&self, heat: &AtomicU32, home: Tier) -> u64 {
        u64::from(self.count(heat)) * self.latencies.gain(home, Tier::Dram)
    }

    /// Whether a chunk in the file with this count is to take the place in the pool of one with another. Without one the pool has room.
    pub(crate) fn is_to_move_up(&self, count: u32, bytes: u64, other: Option<u32>) -> bool {
        let gain = self.latencies.gain(Tier::File, Tier::Pool);
        let count = u64::from(count);
        match other.map(u64::from) {
            None => count * gain > 16 * self.latencies.move_up(bytes),
            Some(other) => {
                4 * count * gain > 5 * other * gain + 64 * self.latencies.swap(bytes)
                    && count > other + self.margin.load(Relaxed)
            }
        }
    }

    /// What a copy to DRAM has cost.
    pub(crate) fn note_copy(&self, home: Tier, bytes: u64) {
        self.note_move(self.latencies.copy_up(home, bytes));
    }

    /// What a move to the pool, and later that of another chunk to the file, has cost.
    pub(crate) fn note_swap(&self, bytes: u64) {
        self.note_move(self.latencies.swap(bytes));
    }

    /// A random number, for the choice of chunks to be compared.
    pub(crate) fn random(&self) -> u64 {
        let mixed = self.randoms.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
    }

    /// Whether this call of the thread is the one of several that looks for a place in DRAM, so that loads of chunks that find none cost little.
    pub(crate) fn is_to_look(&self, home: Tier) -> bool {
        home == Tier::File || self.random().is_multiple_of(8)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const OF_MODELS: Latencies = Latencies { dram: 60, pool: 85, file: 25_000, move_down: 28_000 };

    #[test]
    fn counts_are_halved_in_each_period() {
        let placement = Placement::new(OF_MODELS);
        let heat = AtomicU32::new(0);
        assert_eq!(placement.count(&heat), 0);
        assert_eq!(placement.note_use(&heat, LOAD), 16);
        assert_eq!(placement.note_use(&heat, STORE), 144);
        placement.period.fetch_add(2, Relaxed);
        assert_eq!(placement.count(&heat), 36);
        assert_eq!(placement.note_use(&heat, 10_000), COUNT_MAX);
        placement.period.fetch_add(20, Relaxed);
        assert_eq!(placement.count(&heat), 0);
        // The number of the period has 16 bits there.
        placement.period.fetch_add((1 << 16) - 20, Relaxed);
        assert_eq!(placement.count(&heat), COUNT_MAX);
    }

    /// The margin grows while moves save nothing, and shrinks again when loads become slower.
    #[test]
    fn moves_that_do_not_pay_become_rare() {
        let placement = Placement::new(OF_MODELS);
        let end_period = |tier| {
            let period = placement.period.load(Relaxed);
            while placement.period.load(Relaxed) == period {
                placement.note_load(tier);
                placement.note_copy(Tier::Pool, 4096);
            }
        };
        end_period(Tier::Pool);
        assert!(placement.is_to_enter(64, Tier::File, 4096, Some(0)));
        assert!(!placement.is_to_enter(64, Tier::File, 4096, Some(u64::MAX)));
        assert!(!placement.is_to_move_up(COUNT_MAX, 4096, Some(u32::MAX)));
        (0..20).for_each(|_| end_period(Tier::Pool));
        assert_eq!(placement.margin.load(Relaxed), MARGIN_MAX);
        assert!(!placement.is_to_enter(64, Tier::File, 4096, Some(0)));
        end_period(Tier::File);
        assert_eq!(placement.margin.load(Relaxed), MARGIN_MIN);
    }

    #[test]
    fn a_period_has_six_loads_for_each_chunk_in_use() {
        let placement = Placement::new(OF_MODELS);
        let heats: Vec<AtomicU32> = (0..50_000).map(|_| AtomicU32::new(0)).collect();
        for load in 0_u64..4_000_000 {
            placement.note_use(&heats[usize::try_from(load * 7919 % 50_000).unwrap()], LOAD);
            placement.note_load(Tier::Dram);
        }
        let length = placement.length.load(Relaxed) * SAMPLED;
        assert!((290_000..=300_016).contains(&length), "{length}");
    }
}
