//! A small simulator: sampled power failures and kills of a run of several threads.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "each test program uses some of it; a test fails by panicking"
)]

pub(crate) mod programs;
pub(crate) mod unlogged;

pub(crate) use crate::harness::Rng;
use core::ops::Range;
use pm_alloc::Heap;
use pm_core::{Domain, FenceError, Pmem};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

pub(crate) const LINE: u64 = 64;

pub(crate) type SimHeap = Heap<Arc<Sim>>;

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) visible: Vec<u8>,
    pub(crate) durable: Vec<u8>,
    pending: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
}

#[derive(Default)]
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

/// A simulated region, and its length. A power failure leaves a prefix of the stores to each line, and a kill leaves all stores.
pub(crate) struct Sim(Mutex<Inner>, u64);

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
            self.now.pending.entry(at / LINE).or_default().push((at, piece.to_vec()));
            at += piece.len() as u64;
            rest = more;
        }
        if self.stop_at_change == Some(offset / LINE * LINE) {
            self.stop_at_change = None;
            self.stopped = Some(self.now.clone());
        }
    }
    fn flush(&mut self, offset: u64, len: u64) {
        self.event();
        let mine = self.flushed.entry(std::thread::current().id()).or_default();
        for line in offset / LINE..(offset + len.max(1)).div_ceil(LINE) {
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

impl Sim {
    pub(crate) fn new(len: u64) -> Self {
        let bytes = vec![0; len as usize];
        Self::of(State { visible: bytes.clone(), durable: bytes, pending: BTreeMap::new() })
    }
    pub(crate) fn of(state: State) -> Self {
        let len = state.visible.len() as u64;
        Self(Mutex::new(Inner { now: state, stop_at: u64::MAX, fail_at: u64::MAX, ..Inner::default() }), len)
    }
    pub(crate) fn events(&self) -> u64 {
        self.0.lock().unwrap().events
    }
    pub(crate) fn stop_at(&self, event: u64) {
        self.0.lock().unwrap().stop_at = event;
    }
    pub(crate) fn state(&self) -> State {
        self.0.lock().unwrap().now.clone()
    }
    /// The state after a power failure if no pending store reaches the medium.
    pub(crate) fn power_failure(&self) -> State {
        let durable = self.state().durable;
        State { visible: durable.clone(), durable, pending: BTreeMap::new() }
    }
    /// From this event on every fence fails.
    pub(crate) fn fail_at(&self, event: u64) {
        self.0.lock().unwrap().fail_at = event;
    }
    /// The first fence from this event on fails, and the later ones succeed.
    pub(crate) fn fail_once_at(&self, event: u64) {
        self.fail_at(event);
        self.0.lock().unwrap().fails_once = true;
    }
    pub(crate) fn has_failed(&self) -> bool {
        self.0.lock().unwrap().has_failed
    }
    pub(crate) fn stores(&self) -> u64 {
        self.0.lock().unwrap().stores
    }
    /// Records [`stopped`](Self::stopped) right after the next store to this line.
    pub(crate) fn stop_at_change(&self, line: u64) {
        self.0.lock().unwrap().stop_at_change = Some(line);
    }
    pub(crate) fn stopped(&self) -> Option<State> {
        self.0.lock().unwrap().stopped.take()
    }
}

impl Pmem for Sim {
    fn len_bytes(&self) -> u64 {
        self.1
    }
    fn domain(&self) -> Domain {
        Domain::Adr
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(
            &self.0.lock().unwrap().now.visible[offset as usize..offset as usize + out.len()],
        );
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.0.lock().unwrap().put(offset, bytes);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        let mut inner = self.0.lock().unwrap();
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
        let mut inner = self.0.lock().unwrap();
        inner.event();
        let bytes = value.to_le_bytes();
        inner.now.visible[offset as usize..offset as usize + 16].copy_from_slice(&bytes);
        inner.now.pending.entry(offset / LINE).or_default().push((offset, bytes.to_vec()));
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let found = self.load_u64(offset);
        if found != current {
            return Err(found);
        }
        self.store_u64(offset, new);
        Ok(found)
    }
    fn flush(&self, offset: u64, len: u64) {
        self.0.lock().unwrap().flush(offset, len);
    }
    fn fence(&self) -> Result<(), FenceError> {
        let mut inner = self.0.lock().unwrap();
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

/// The seeds of random programs: `count` from 0 on, unless `PM_CRASH_FIRST` and `PM_CRASH_SEQUENCES` determine others.
pub(crate) fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = number("PM_CRASH_FIRST", 0);
    first..first + number("PM_CRASH_SEQUENCES", count)
}

/// A random state that a power failure may leave.
pub(crate) fn crash(state: &State, rng: &mut Rng) -> State {
    let mut durable = state.durable.clone();
    let mode = rng.below(4);
    for pending in state.pending.values() {
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
    State { visible: durable.clone(), durable, pending: BTreeMap::new() }
}
