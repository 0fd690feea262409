//! Memory that counts, delays and fails fences.

use core::ops::Range;
use pm_core::{Domain, FenceError, Pmem, Region};
use pm_testkit::{Hook, Hooked};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Makes memory one of a given domain, counts its fences, and delays or fails them on request.
#[derive(Debug)]
pub struct Watched {
    domain: Domain,
    fences: AtomicU64,
    pub fails: AtomicBool,
    /// Fences wait while it is locked.
    pub gate: Mutex<()>,
    /// The next store around the cache waits, too.
    pub delays_store: AtomicBool,
}

/// Memory that is watched.
pub type WatchedMemory = Hooked<Region, Arc<Watched>>;

impl Watched {
    /// Memory of `len_bytes`, and what watches it.
    pub fn memory(domain: Domain, len_bytes: u64) -> (Arc<Self>, WatchedMemory) {
        let watched = Arc::new(Self {
            domain,
            fences: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            gate: Mutex::new(()),
            delays_store: AtomicBool::new(false),
        });
        let memory = Hooked::new(Region::anonymous(len_bytes).unwrap(), Arc::clone(&watched));
        (watched, memory)
    }

    pub fn fences(&self) -> u64 {
        self.fences.load(SeqCst)
    }
}

impl Hook<Region> for Watched {
    fn domain(&self, _: &Region) -> Domain {
        self.domain
    }
    fn before_store_nt(&self, _: Range<u64>) {
        if self.delays_store.swap(false, SeqCst) {
            drop(self.gate.lock().unwrap());
        }
    }
    fn fence(&self, region: &Region) -> Result<(), FenceError> {
        self.fences.fetch_add(1, SeqCst);
        drop(self.gate.lock().unwrap());
        if self.fails.load(SeqCst) { Err(FenceError::Poisoned) } else { region.fence() }
    }
}
