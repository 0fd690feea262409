//! The speed of a memory.

use super::clock::{Clock, whole};
use super::cost::{Access, Cost};
use super::error::EmulationError;
use super::machine::{Dram, Machine};
use crate::line::LINE;
use std::time::Duration;

/// The speed of a memory, as [the model](super) describes it. What is not set is not delayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    read: AccessSpeed,
    write: AccessSpeed,
    barrier: Duration,
    is_simulated: bool,
    cache_bytes: Option<usize>,
}

/// The speed of reads or of writes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AccessSpeed {
    access: Duration,
    line: Duration,
    overlap: u32,
    /// Bytes in a second.
    bandwidth: Option<u64>,
    slowdown: Option<f64>,
}

impl AccessSpeed {
    const NONE: Self =
        Self { access: Duration::ZERO, line: Duration::ZERO, overlap: 1, bandwidth: None, slowdown: None };

    fn in_ticks(
        &self,
        clock: Clock,
        dram: impl FnOnce() -> Result<Cost, EmulationError>,
    ) -> Result<Access, EmulationError> {
        if self.overlap == 0 {
            return Err(EmulationError::Impossible("at least one line of an access is in flight"));
        }
        let line = clock.to_ticks(self.line);
        let per_line = line / f64::from(self.overlap);
        let mut cost = Cost { fixed: clock.to_ticks(self.access) + line - per_line, per_line };
        if let Some(factor) = self.slowdown {
            if !(1.0..=1e6).contains(&factor) {
                return Err(EmulationError::Impossible("a slowdown is a factor from 1 to 1,000,000"));
            }
            let dram = dram()?;
            cost.fixed = cost.fixed.max(factor * dram.fixed);
            cost.per_line = cost.per_line.max(factor * dram.per_line);
        }
        let service = match self.bandwidth {
            Some(0) => return Err(EmulationError::Impossible("a bandwidth of zero bytes in a second")),
            Some(bandwidth) => clock.to_ticks(Duration::from_secs(1)) * LINE as f64 / bandwidth as f64,
            None => 0.0,
        };
        Ok(Access { cost, service })
    }
}

impl Default for Speed {
    fn default() -> Self {
        Self::new()
    }
}

impl Speed {
    /// A memory without delays.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: AccessSpeed::NONE,
            write: AccessSpeed::NONE,
            barrier: Duration::ZERO,
            is_simulated: false,
            cache_bytes: None,
        }
    }

    /// The latency of reading a line.
    #[must_use]
    pub const fn read_latency(mut self, latency: Duration) -> Self {
        self.read.line = latency;
        self
    }

    /// The latency of writing a line.
    #[must_use]
    pub const fn write_latency(mut self, latency: Duration) -> Self {
        self.write.line = latency;
        self
    }

    /// The time that each read takes before its first line, of a memory that is read in pages.
    #[must_use]
    pub const fn read_access(mut self, latency: Duration) -> Self {
        self.read.access = latency;
        self
    }

    /// The time that each write takes before its first line.
    #[must_use]
    pub const fn write_access(mut self, latency: Duration) -> Self {
        self.write.access = latency;
        self
    }

    /// The lines of one read that the memory serves at the same time. Default: 1.
    #[must_use]
    pub const fn read_overlap(mut self, lines: u32) -> Self {
        self.read.overlap = lines;
        self
    }

    /// The lines of one write that the memory serves at the same time. Default: 1.
    #[must_use]
    pub const fn write_overlap(mut self, lines: u32) -> Self {
        self.write.overlap = lines;
        self
    }

    /// The bandwidth of reads in bytes a second, over all threads. A memory serves reads and writes in turn.
    #[must_use]
    pub const fn read_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.read.bandwidth = Some(bytes_per_second);
        self
    }

    /// The bandwidth of writes in bytes a second, over all threads.
    #[must_use]
    pub const fn write_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.write.bandwidth = Some(bytes_per_second);
        self
    }

    /// The time of a fence.
    #[must_use]
    pub const fn barrier_latency(mut self, latency: Duration) -> Self {
        self.barrier = latency;
        self
    }

    /// Reads take at least this many times as long as copies from this machine's DRAM: the `rdsx` of PMBD.
    #[must_use]
    pub const fn read_slowdown(mut self, factor: f64) -> Self {
        self.read.slowdown = Some(factor);
        self
    }

    /// Writes take at least this many times as long as copies to this machine's DRAM: the `wrsx` of PMBD.
    #[must_use]
    pub const fn write_slowdown(mut self, factor: f64) -> Self {
        self.write.slowdown = Some(factor);
        self
    }

    /// Delays nothing, and lets [simulated time](super::SimulatedInstant) pass instead. A memory may be faster than the machine's own.
    #[must_use]
    pub const fn simulated(mut self, is_simulated: bool) -> Self {
        self.is_simulated = is_simulated;
        self
    }

    /// Adds a CPU cache of `len_bytes` bytes to the model: loads of lines that were loaded or stored to before cost nothing, while the cache holds
    /// them. It is direct-mapped and shared by all threads.
    #[must_use]
    pub const fn cache_bytes(mut self, len_bytes: usize) -> Self {
        self.cache_bytes = Some(len_bytes);
        self
    }

    /// Checks that this machine can emulate it. The first call in a process takes some 10 ms, to measure what the machine's own accesses take; with a
    /// slowdown 100 ms more.
    ///
    /// # Errors
    /// * [`TooFast`](EmulationError::TooFast): an access would take less time than this machine's, and time is not simulated.
    /// * [`Impossible`](EmulationError::Impossible): a value has no meaning.
    /// * [`UnsteadyClock`](EmulationError::UnsteadyClock): the machine's time stamp counter does not count at a constant rate.
    /// * [`Memory`](EmulationError::Memory): no memory to measure in.
    pub fn check(&self) -> Result<(), EmulationError> {
        let machine = Machine::get()?;
        let (read, write, _) = self.in_ticks(machine.clock)?;
        if self.is_simulated { Ok(()) } else { machine.check(&read, &write) }
    }

    pub(super) const fn is_simulated(&self) -> bool {
        self.is_simulated
    }

    pub(super) const fn cache_len_bytes(&self) -> Option<usize> {
        self.cache_bytes
    }

    /// Reads, writes and barriers in ticks.
    pub(super) fn in_ticks(&self, clock: Clock) -> Result<(Access, Access, u64), EmulationError> {
        let read = self.read.in_ticks(clock, || Dram::get().map(|dram| dram.read))?;
        let write = self.write.in_ticks(clock, || Dram::get().map(|dram| dram.write))?;
        Ok((read, write, whole(clock.to_ticks(self.barrier))))
    }
}
