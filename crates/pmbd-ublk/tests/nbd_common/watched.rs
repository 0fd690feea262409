//! Memory that counts, delays and fails fences.

use pm_core::{Domain, FenceError, Pmem, Region, forward_pmem};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Memory in a given domain that counts fences, and delays or fails them on request.
#[derive(Debug)]
pub struct Watched {
    memory: Region,
    domain: Domain,
    fences: AtomicU64,
    pub fails: AtomicBool,
    /// Fences wait while it is locked.
    pub gate: Mutex<()>,
    /// The next store waits, too.
    pub delays_store: AtomicBool,
}

impl Watched {
    /// Of `len_bytes`.
    pub fn new(domain: Domain, len_bytes: u64) -> Self {
        let memory = Region::anonymous(len_bytes).unwrap();
        Self {
            memory,
            domain,
            fences: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            gate: Mutex::new(()),
            delays_store: AtomicBool::new(false),
        }
    }

    pub fn fences(&self) -> u64 {
        self.fences.load(SeqCst)
    }
}

impl Pmem for Watched {
    forward_pmem!(|this| this.memory => len_bytes, load, store, load_u64, store_u64, store_u128, compare_exchange_u64, flush);

    fn domain(&self) -> Domain {
        self.domain
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        if self.delays_store.swap(false, SeqCst) {
            drop(self.gate.lock().unwrap());
        }
        self.memory.store_nt(offset, bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.fences.fetch_add(1, SeqCst);
        drop(self.gate.lock().unwrap());
        if self.fails.load(SeqCst) { Err(FenceError::Poisoned) } else { self.memory.fence() }
    }
}
