//! Random changes of roots, with failing fences, by one writing handle after another, beside a read-only handle. The roots that the read-only handle
//! finds are durable, or are those before a failed change.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

use crate::pools::{POOL_BYTES, options, try_set_at};
use crate::random::seeds;
use fastrand::Rng;
use pm_core::{Domain, FenceError, Pmem, Pool, Region, WriterLock, forward_pmem};
use std::collections::BTreeSet;
use std::sync::Mutex;

const LINE: u64 = 64;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A region that records which data survives a power failure, and whose fences may fail: data that only a failed fence covers does not survive.
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

    /// Lets this number of fences succeed and all later ones fail. With `None`, no fence fails.
    fn fail_after(&self, fences: Option<u64>) {
        self.state.lock().unwrap().fences_left = fences;
    }

    /// The roots after a crash that keeps only durable data.
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
        assert_eq!(pool.find_root(root.name()).unwrap(), Some(*root), "a lookup by name equals the list");
    }
    all.iter().map(|root| (root.name().to_owned(), root.offset())).collect()
}

/// Makes a few changes, of which some may fail. Returns whether any failed.
fn change(writer: &Pool<&Medium>, reader: &Pool<&Medium>, rng: &mut Rng, context: &str) -> bool {
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
        assert_eq!(found, roots(writer), "{context}: the handles must agree");
        // A failed change may leave the former roots visible, although others are durable.
        assert!(
            found == crashed || has_failed && found == before,
            "{context}: {name}: found {found:?}, before {before:?}, after a crash {crashed:?}"
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
        let context = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: step {step}");
        medium.fail_after((rng.u64(0..3) == 0).then(|| rng.u64(0..6)));
        let Ok(writer) = Pool::attach(&medium) else {
            failed_openings += 1;
            // The failed open changes nothing that is visible, or has made the hidden slots durable and visible.
            let (found, crashed) = (roots(&reader), medium.after_crash());
            assert!(
                found == shown || found == crashed,
                "{context}: after a failed open found {found:?}, before {shown:?}, after a crash {crashed:?}"
            );
            shown = found;
            continue;
        };
        let has_failed = change(&writer, &reader, &mut rng, &context);
        failed_changes += u64::from(has_failed);
        shown = roots(&reader);
        drop(writer);
        assert_eq!(shown, roots(&reader), "{context}: dropping the writer changes nothing");
        assert!(has_failed || shown == medium.after_crash(), "{context}: {shown:?} is not durable");
    }
    (failed_changes, failed_openings)
}

#[test]
fn readers_find_durable_roots_beside_failing_writers() {
    let seeds = seeds(60);
    let is_short = seeds.end - seeds.start < 10;
    let (mut failed_changes, mut failed_openings) = (0, 0);
    for seed in seeds {
        let (changes, openings) = run(seed);
        failed_changes += changes;
        failed_openings += openings;
    }
    assert!(is_short || failed_changes > 0 && failed_openings > 0, "{failed_changes} {failed_openings}");
}
