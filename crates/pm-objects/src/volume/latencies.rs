//! How long loads take on each tier.

use super::hints::Tier;
use core::time::Duration;

/// The latencies by which places are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latencies {
    pub(crate) dram: u64,
    pub(crate) pool: u64,
    pub(crate) file: u64,
    /// What a move to the file takes, of one chunk of a batch.
    pub(crate) move_down: u64,
}

impl Latencies {
    pub(crate) fn new(dram: Duration, pool: Duration, file: Duration, move_down: Duration) -> Self {
        let [dram, pool, file, move_down] = [dram, pool, file, move_down].map(nanoseconds);
        Self { dram, pool, file, move_down }
    }

    /// That of a load, in nanoseconds.
    #[inline]
    pub(crate) const fn of(&self, tier: Tier) -> u64 {
        match tier {
            Tier::Dram => self.dram,
            Tier::Pool => self.pool,
            Tier::File => self.file,
        }
    }

    /// What a load saves in a tier that is not slower.
    #[inline]
    pub(crate) const fn gain(&self, home: Tier, tier: Tier) -> u64 {
        self.of(home).saturating_sub(self.of(tier))
    }

    /// What a copy to DRAM costs, of so many bytes. Of a chunk in the file it comes with the load.
    pub(crate) const fn copy_up(&self, home: Tier, bytes: u64) -> u64 {
        let lines = bytes.div_ceil(64);
        match home {
            Tier::Dram => 0,
            Tier::Pool => lines * self.pool / 4,
            Tier::File => lines * self.dram / 8,
        }
    }

    /// What a move to the pool costs, and that of another chunk to the file, in a batch.
    pub(crate) const fn swap(&self, bytes: u64) -> u64 {
        self.move_up(bytes) + self.move_down
    }

    /// What a move to the pool costs, which has room.
    pub(crate) const fn move_up(&self, bytes: u64) -> u64 {
        bytes.div_ceil(64) * self.pool
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
