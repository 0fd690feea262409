//! A part of a simulated region, as a medium of its own: one simulator for two media.

use pm_core::{Domain, FenceError, Pmem};
use pm_crashsim::SimPmem;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// A part of a simulated region. Its flushes take effect at its own fences only, so that a fence of the other part does not make its stores durable.
#[derive(Debug)]
pub struct Half {
    sim: Arc<SimPmem>,
    range: Range<u64>,
    /// The ranges that each thread has flushed since its last fence here.
    flushed: Mutex<HashMap<ThreadId, Vec<(u64, u64)>>>,
}

impl Half {
    /// The part of a region in this range of offsets.
    #[must_use]
    pub fn new(sim: &Arc<SimPmem>, range: Range<u64>) -> Self {
        assert!(range.end <= sim.len_bytes() && range.start.is_multiple_of(4096));
        Self { sim: Arc::clone(sim), range, flushed: Mutex::default() }
    }

    fn at(&self, offset: u64, len_bytes: u64) -> u64 {
        assert!(offset + len_bytes <= self.len_bytes(), "{len_bytes} bytes at {offset}");
        self.range.start + offset
    }
}

impl Pmem for Half {
    fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn domain(&self) -> Domain {
        self.sim.domain()
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.sim.load(self.at(offset, out.len() as u64), out);
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.sim.store(self.at(offset, bytes.len() as u64), bytes);
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.store(offset, bytes);
        self.flush(offset, bytes.len() as u64);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.sim.load_u64(self.at(offset, 8))
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.sim.store_u64(self.at(offset, 8), value);
    }

    fn store_u128(&self, offset: u64, value: u128) {
        self.sim.store_u128(self.at(offset, 16), value);
    }

    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.sim.compare_exchange_u64(self.at(offset, 8), current, new)
    }

    fn flush(&self, offset: u64, len_bytes: u64) {
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        flushed.entry(thread::current().id()).or_default().push((self.at(offset, len_bytes), len_bytes));
    }

    fn fence(&self) -> Result<(), FenceError> {
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, len_bytes) in flushed.remove(&thread::current().id()).unwrap_or_default() {
            self.sim.flush(at, len_bytes);
        }
        self.sim.fence()
    }
}
