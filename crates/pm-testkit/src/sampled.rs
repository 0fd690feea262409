//! A small simulator: sampled power failures and kills of a run of several threads.

use crate::Rng;
use pm_core::line::LINE_BYTES;
use pm_core::{Domain, FenceError, Pmem};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The contents of a region at an event.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// What loads return.
    pub visible: Vec<u8>,
    /// What a power failure leaves at least.
    pub durable: Vec<u8>,
    /// The stores to each line that are not durable, in their order.
    pending: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
}

impl State {
    /// A random state that a power failure may leave.
    #[must_use]
    pub fn crash(&self, rng: &mut Rng) -> Self {
        let mut durable = self.durable.clone();
        let mode = rng.below(4);
        for pending in self.pending.values() {
            let kept = match mode {
                0 => 0,
                1 => pending.len(),
                2 if rng.one_in(2) => 0,
                2 => pending.len(),
                _ => rng.below(pending.len() as u64 + 1) as usize,
            };
            for (at, piece) in &pending[..kept] {
                durable[*at as usize..*at as usize + piece.len()].copy_from_slice(piece);
            }
        }
        Self { visible: durable.clone(), durable, pending: BTreeMap::new() }
    }
}

#[derive(Debug, Default)]
struct Inner {
    now: State,
    flushed: HashMap<ThreadId, HashMap<u64, usize>>,
    events: u64,
    stop_at: u64,
    fail_at: u64,
    fails_once: bool,
    has_failed: bool,
    stores: u64,
    stop_at_change: Option<u64>,
    stopped: Option<State>,
}

/// A simulated region. A power failure leaves a prefix of the stores to each line, and a kill leaves all stores.
#[derive(Debug)]
pub struct SampledPmem {
    inner: Mutex<Inner>,
    len_bytes: u64,
}

impl Inner {
    fn event(&mut self) {
        if self.events == self.stop_at {
            self.stopped = Some(self.now.clone());
        }
        self.events += 1;
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.stores += 1;
        self.event();
        self.now.visible[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = (8 - at % 8) as usize;
            let (piece, more) = rest.split_at(room.min(rest.len()));
            self.now.pending.entry(at / LINE_BYTES).or_default().push((at, piece.to_vec()));
            at += piece.len() as u64;
            rest = more;
        }
        if self.stop_at_change == Some(offset / LINE_BYTES * LINE_BYTES) {
            self.stop_at_change = None;
            self.stopped = Some(self.now.clone());
        }
    }

    fn flush(&mut self, offset: u64, len: u64) {
        self.event();
        let mine = self.flushed.entry(std::thread::current().id()).or_default();
        for line in offset / LINE_BYTES..(offset + len.max(1)).div_ceil(LINE_BYTES) {
            if let Some(pending) = self.now.pending.get(&line) {
                mine.insert(line, pending.len());
            }
        }
    }
    fn fence(&mut self) {
        self.event();
        let mine = self.flushed.remove(&std::thread::current().id()).unwrap_or_default();
        for (line, count) in mine {
            let Some(pending) = self.now.pending.get_mut(&line) else { continue };
            let count = count.min(pending.len());
            for (at, piece) in pending.drain(..count) {
                self.now.durable[at as usize..at as usize + piece.len()].copy_from_slice(&piece);
            }
            if pending.is_empty() {
                self.now.pending.remove(&line);
            }
            for other in self.flushed.values_mut() {
                if let Some(theirs) = other.get_mut(&line) {
                    *theirs = theirs.saturating_sub(count);
                }
            }
        }
    }
}

impl SampledPmem {
    /// A region of zeros.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        let bytes = vec![0; len_bytes as usize];
        Self::of(State { visible: bytes.clone(), durable: bytes, pending: BTreeMap::new() })
    }
    /// A region that starts in this state.
    #[must_use]
    pub fn of(state: State) -> Self {
        let len_bytes = state.visible.len() as u64;
        let inner = Inner { now: state, stop_at: u64::MAX, fail_at: u64::MAX, ..Inner::default() };
        Self { inner: Mutex::new(inner), len_bytes }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of stores, flushes and fences.
    pub fn events(&self) -> u64 {
        self.inner().events
    }

    /// Records [`stopped`](Self::stopped) right before this event.
    pub fn stop_at(&self, event: u64) {
        self.inner().stop_at = event;
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.inner().now.clone()
    }

    /// The state after a power failure if no pending store reaches the medium.
    pub fn power_failure(&self) -> State {
        let durable = self.state().durable;
        State { visible: durable.clone(), durable, pending: BTreeMap::new() }
    }

    /// From this event on every fence fails.
    pub fn fail_at(&self, event: u64) {
        self.inner().fail_at = event;
    }

    /// The first fence from this event on fails, and the later ones succeed.
    pub fn fail_once_at(&self, event: u64) {
        self.fail_at(event);
        self.inner().fails_once = true;
    }

    /// Whether a fence has failed.
    pub fn has_failed(&self) -> bool {
        self.inner().has_failed
    }

    /// The number of stores.
    pub fn stores(&self) -> u64 {
        self.inner().stores
    }

    /// Records [`stopped`](Self::stopped) right after the next store to this line.
    pub fn stop_at_change(&self, line: u64) {
        self.inner().stop_at_change = Some(line);
    }

    /// The recorded state, taken out.
    pub fn stopped(&self) -> Option<State> {
        self.inner().stopped.take()
    }
}

impl Pmem for SampledPmem {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn domain(&self) -> Domain {
        Domain::Adr
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.inner().now.visible[offset as usize..offset as usize + out.len()]);
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.inner().put(offset, bytes);
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        let mut inner = self.inner();
        inner.put(offset, bytes);
        inner.flush(offset, bytes.len() as u64);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.load(offset, &mut word);
        u64::from_le_bytes(word)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.store(offset, &value.to_le_bytes());
    }

    fn store_u128(&self, offset: u64, value: u128) {
        let mut inner = self.inner();
        inner.event();
        let bytes = value.to_le_bytes();
        inner.now.visible[offset as usize..offset as usize + 16].copy_from_slice(&bytes);
        inner.now.pending.entry(offset / LINE_BYTES).or_default().push((offset, bytes.to_vec()));
    }

    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let mut inner = self.inner();
        let mut word = [0; 8];
        word.copy_from_slice(&inner.now.visible[offset as usize..offset as usize + 8]);
        let found = u64::from_le_bytes(word);
        if found != current {
            return Err(found);
        }
        inner.put(offset, &new.to_le_bytes());
        Ok(found)
    }

    fn flush(&self, offset: u64, len: u64) {
        self.inner().flush(offset, len);
    }

    fn fence(&self) -> Result<(), FenceError> {
        let mut inner = self.inner();
        if inner.events >= inner.fail_at && !(inner.fails_once && inner.has_failed) {
            inner.has_failed = true;
            // A later fence does not cover the flushes before this failed one.
            inner.flushed.remove(&std::thread::current().id());
            return Err(FenceError::Poisoned);
        }
        inner.fence();
        Ok(())
    }
}
