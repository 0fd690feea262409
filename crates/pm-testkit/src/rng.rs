//! Repeatable random numbers, and the seeds of random programs.

use core::ops::Range;

/// Random numbers: xorshift64*.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Those of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        // The first numbers are discarded: those of small seeds are similar.
        for _ in 0..5 {
            rng.next();
        }
        rng
    }

    /// 48 random bits.
    #[expect(clippy::should_implement_trait, reason = "they do not end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// An index of `len` items.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// The seeds of random programs: `count` from 0 on, unless `PM_CRASH_FIRST` and `PM_CRASH_SEQUENCES` determine others.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = number("PM_CRASH_FIRST", 0);
    first..first + number("PM_CRASH_SEQUENCES", count)
}
