//! What the machine's own accesses take.

use super::clock::{Clock, whole};
use super::cost::{Access, Cost};
use super::error::EmulationError;
use crate::insn::{ticks, ticks_after_loads};
use crate::line::LINE;
use crate::{Pmem, Region};
use std::sync::OnceLock;

/// Lines of the longer of the two accesses that are measured.
const LONG: usize = 64;
/// More than the caches hold.
const DRAM_BYTES: u64 = 128 << 20;

/// The least that accesses take on this machine, when nothing disturbs them, in ticks; measured once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) clock: Clock,
    read: Cost,
    write: Cost,
}

impl Machine {
    pub(super) fn get() -> Result<&'static Self, EmulationError> {
        static MACHINE: OnceLock<Result<Machine, EmulationError>> = OnceLock::new();
        MACHINE.get_or_init(Self::measure).as_ref().map_err(Clone::clone)
    }

    fn measure() -> Result<Self, EmulationError> {
        let clock = Clock::measure()?;
        let region =
            Region::anonymous(64 << 10).map_err(|error| EmulationError::Memory(error.to_string()))?;
        region.populate(0, region.len_bytes());
        let read = least(&mut |bytes| region.load(0, bytes));
        let write = least(&mut |bytes| region.store_nt(0, bytes));
        Ok(Self { clock, read, write })
    }

    /// Refuses accesses that would take less time than this machine's.
    pub(super) fn check(&self, read: &Access, write: &Access) -> Result<(), EmulationError> {
        const MANY: u64 = LONG as u64;
        for (access, asked, own) in [("read", read, self.read), ("write", write, self.write)] {
            // Bandwidth is a property of long accesses.
            let service = whole(asked.service * MANY as f64);
            for (lines, asked) in [(1, asked.cost.of(1)), (MANY, asked.cost.of(MANY).max(service))] {
                let own = own.of(lines);
                if asked != 0 && asked < own {
                    let (asked, own) = (self.clock.to_duration(asked), self.clock.to_duration(own));
                    return Err(EmulationError::TooFast { access, lines, asked, own });
                }
            }
        }
        Ok(())
    }
}

/// The least ticks of an access to one line, and to many.
fn least(access: &mut dyn FnMut(&mut [u8])) -> Cost {
    let mut bytes = [0; LONG * LINE];
    let mut least_of = |len: usize| {
        let timed = |_| {
            let begin = ticks();
            access(&mut bytes[..len]);
            ticks_after_loads() - begin
        };
        (0..2000).map(timed).min().unwrap_or(0) as f64
    };
    Cost::through(least_of(LINE), least_of(LONG * LINE), LONG as u64)
}

/// What copies from and to DRAM take on this machine, in ticks: the baseline of a slowdown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dram {
    pub(super) read: Cost,
    pub(super) write: Cost,
}

impl Dram {
    pub(super) fn get() -> Result<Self, EmulationError> {
        static DRAM: OnceLock<Result<Dram, EmulationError>> = OnceLock::new();
        DRAM.get_or_init(Self::measure).clone()
    }

    fn measure() -> Result<Self, EmulationError> {
        let region =
            Region::anonymous(DRAM_BYTES).map_err(|error| EmulationError::Memory(error.to_string()))?;
        region.populate(0, region.len_bytes());
        let read = typical(&mut |offset, bytes| region.load(offset, bytes));
        let write = typical(&mut |offset, bytes| region.store_nt(offset, bytes));
        Ok(Self { read, write })
    }
}

/// The median ticks of an access to one line, alone, and of one to many, among others: a copy of a block overlaps with the one before. At scattered
/// offsets.
fn typical(access: &mut dyn FnMut(u64, &mut [u8])) -> Cost {
    /// A prime number of pages.
    const STRIDE: u64 = 7919 * 4096;
    const SAMPLES: usize = 201;
    /// More than the memory's buffers take in.
    const TOGETHER: u64 = 256;
    let mut bytes = [0; LONG * LINE];
    let mut offset = 0;
    let mut median_of = |len: usize, together: u64| {
        let timed = |_| {
            let begin = ticks();
            for _ in 0..together {
                offset = (offset + STRIDE) % DRAM_BYTES;
                access(offset, &mut bytes[..len]);
            }
            (ticks_after_loads() - begin) / together
        };
        let mut times: Vec<u64> = (0..SAMPLES).map(timed).collect();
        *times.select_nth_unstable(SAMPLES / 2).1 as f64
    };
    Cost::through(median_of(LINE, 1), median_of(LONG * LINE, TOGETHER), LONG as u64)
}
