//! Memory that counts, delays and fails fences.

use pm_core::{Domain, FenceError, Pmem, Region};
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
    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }
    fn domain(&self) -> Domain {
        self.domain
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.memory.load(offset, out);
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.memory.store(offset, bytes);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        if self.delays_store.swap(false, SeqCst) {
            drop(self.gate.lock().unwrap());
        }
        self.memory.store_nt(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.memory.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.memory.store_u64(offset, value);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.memory.store_u128(offset, value);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.memory.compare_exchange_u64(offset, current, new)
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.memory.flush(offset, len_bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.fences.fetch_add(1, SeqCst);
        drop(self.gate.lock().unwrap());
        if self.fails.load(SeqCst) { Err(FenceError::Poisoned) } else { self.memory.fence() }
    }
}
