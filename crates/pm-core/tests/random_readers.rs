//! Random changes of roots with failing fences, and handles that are opened again after them, beside a handle that only reads. What the
//! reader finds is durable, or stays as it was before the change that failed. As many programs as `PM_CRASH_SEQUENCES` says, from the
//! seed `PM_CRASH_FIRST` on.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod pools;
mod random;

use fastrand::Rng;
use pm_core::{Domain, FenceError, Pmem, Pool, Region, WriterLock, forward_pmem};
use pools::{POOL_BYTES, options, try_set_at};
use random::seeds;
use std::collections::BTreeSet;
use std::sync::Mutex;

const LINE: u64 = 64;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A region that keeps what must survive a power failure, and whose fences may fail: what was flushed before a failed one does not survive.
struct Medium {
    region: Region,
    state: Mutex<State>,
    lock: WriterLock,
}

struct State {
    durable: Vec<u8>,
    flushed: BTreeSet<u64>,
    fences_left: Option<u64>,
}

impl Medium {
    fn new() -> Self {
        let durable = vec![0; POOL_BYTES as usize];
        Self {
            region: Region::anonymous(POOL_BYTES).unwrap(),
            state: Mutex::new(State { durable, flushed: BTreeSet::new(), fences_left: None }),
            lock: WriterLock::default(),
        }
    }

    /// After so many fences, all fail.
    fn fail_after(&self, fences: Option<u64>) {
        self.state.lock().unwrap().fences_left = fences;
    }

    /// What is found after a crash that keeps no more than it must.
    fn after_crash(&self) -> Vec<(String, u64)> {
        let region = Region::anonymous(POOL_BYTES).unwrap();
        region.store(0, &self.state.lock().unwrap().durable);
        roots(&Pool::attach(&region).unwrap())
    }
}

impl Pmem for Medium {
    forward_pmem!(|this| this.region => len_bytes, load, store, load_u64, store_u64, store_u128, compare_exchange_u64);

    fn domain(&self) -> Domain {
        Domain::Adr
    }
    fn writer_lock(&self) -> Option<WriterLock> {
        Some(self.lock.clone())
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.region.store(offset, bytes);
        self.flush(offset, bytes.len() as u64);
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        let lines = offset / LINE..(offset + len_bytes).div_ceil(LINE);
        self.state.lock().unwrap().flushed.extend(lines);
    }
    fn fence(&self) -> Result<(), FenceError> {
        let mut state = self.state.lock().unwrap();
        let flushed = std::mem::take(&mut state.flushed);
        if let Some(left) = &mut state.fences_left {
            *left = left.checked_sub(1).ok_or(FenceError::Poisoned)?;
        }
        for line in flushed {
            let at = (line * LINE) as usize;
            self.region.load(line * LINE, &mut state.durable[at..at + LINE as usize]);
        }
        Ok(())
    }
}

fn roots<P: Pmem>(pool: &Pool<P>) -> Vec<(String, u64)> {
    let all = pool.roots();
    for root in &all {
        assert_eq!(pool.find_root(root.name()).unwrap(), Some(*root), "by name and in the list");
    }
    all.iter().map(|root| (root.name().to_owned(), root.offset())).collect()
}

/// A few changes, of which some may fail: whether one did.
fn change(writer: &Pool<&Medium>, reader: &Pool<&Medium>, rng: &mut Rng, told: &str) -> bool {
    let mut has_failed = false;
    for _ in 0..rng.u64(0..4) {
        let before = roots(reader);
        let name = NAMES[rng.usize(0..5)];
        let changed = if rng.u64(0..3) == 0 {
            writer.remove_root(name)
        } else {
            let number = rng.u64(0..100);
            try_set_at(writer, name, writer.data().start + 8 * number, number)
        };
        has_failed |= changed.is_err();
        let (found, crashed) = (roots(reader), reader.pmem().after_crash());
        assert_eq!(found, roots(writer), "{told}: in both handles");
        // Once a change failed, its root is found as before, or as it is durable.
        assert!(
            found == crashed || has_failed && found == before,
            "{told}: {name}: found {found:?}, before {before:?}, after a crash {crashed:?}"
        );
    }
    has_failed
}

fn run(seed: u64) -> (u64, u64) {
    let (mut failed_changes, mut failed_openings) = (0, 0);
    let mut rng = Rng::with_seed(seed);
    let medium = Medium::new();
    drop(Pool::format(&medium, &options(1)).unwrap());
    let reader = Pool::attach_read_only(&medium).unwrap();
    let mut shown = vec![];
    for step in 0..60 {
        let told = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: step {step}");
        medium.fail_after((rng.u64(0..3) == 0).then(|| rng.u64(0..6)));
        let Ok(writer) = Pool::attach(&medium) else {
            failed_openings += 1;
            // What a failed change has hidden stays hidden, or is durable by now.
            let (found, crashed) = (roots(&reader), medium.after_crash());
            assert!(
                found == shown || found == crashed,
                "{told}: found {found:?} after an opening that failed, {shown:?} before, after a crash {crashed:?}"
            );
            shown = found;
            continue;
        };
        let has_failed = change(&writer, &reader, &mut rng, &told);
        failed_changes += u64::from(has_failed);
        shown = roots(&reader);
        drop(writer);
        assert_eq!(shown, roots(&reader), "{told}: without the writer");
        assert!(has_failed || shown == medium.after_crash(), "{told}: {shown:?} is not durable");
    }
    (failed_changes, failed_openings)
}

#[test]
fn readers_find_what_is_durable_beside_writers_that_fail() {
    let seeds = seeds(60);
    let is_small = seeds.end - seeds.start < 10;
    let (mut failed_changes, mut failed_openings) = (0, 0);
    for seed in seeds {
        let (changes, openings) = run(seed);
        failed_changes += changes;
        failed_openings += openings;
    }
    assert!(is_small || failed_changes > 0 && failed_openings > 0, "{failed_changes} {failed_openings}");
}
