//! Pools on failing media: with any bit flipped or any line lost, a pool is correct or reports corruption. The same holds for a growing pool that is
//! crashed or killed at any point.

use crate::pools::{LONGER_BYTES, POOL_BYTES, SimPool, longer, options, set};
use pm_core::{HeaderState, Pmem, Pool, PoolError, RootError, Uuid};
use pm_crashsim::{Crash, Explorer, Fault, Faults, Image, Model, Run, SimPmem};
use std::ops::Range;
use std::sync::Arc;

const PRIMARY: Range<u64> = 0..4096;
const BACKUP: Range<u64> = POOL_BYTES - 4096..POOL_BYTES;
/// Two slots in use, and one that is free.
const ROOTS: Range<u64> = 4096..4096 + 3 * 64;

fn get(pool: &SimPool, name: &str) -> Result<Option<u64>, RootError> {
    pool.scope(|pm| Ok(pm.root::<u64>(name)?.map(|link| pm.read(link).unwrap())))
}

fn pool_image() -> Image {
    let pool = Pool::format(Arc::new(SimPmem::new(POOL_BYTES)), &options(1)).unwrap();
    set(&pool, "counter", 0, 1);
    set(&pool, "other", 1, 9);
    pool.pmem().to_image()
}

/// The operation of tests in which only the medium fails.
fn nothing(_: &Run<()>) {}

fn hits(crash: &Crash<()>, range: &Range<u64>) -> bool {
    crash.faults().iter().any(|fault| range.contains(&fault.range().start))
}

#[test]
fn one_fault_in_header_is_repaired_and_reported() {
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).unwrap();
        match pool.header_state() {
            HeaderState::Intact => assert!(crash.faults().is_empty()),
            HeaderState::PrimaryCorrupted(_) => assert!(hits(crash, &PRIMARY)),
            HeaderState::BackupCorrupted(_) => assert!(hits(crash, &BACKUP)),
            other => panic!("{other:?}"),
        }
        assert_eq!((get(&pool, "counter").unwrap(), get(&pool, "other").unwrap()), (Some(1), Some(9)));
        assert_eq!(Pool::attach(pool.into_pmem()).unwrap().header_state(), HeaderState::Intact);
    };
    let faults = Faults::none().flips(1).poison(1).within(PRIMARY).within(BACKUP).sets_per_image(1 << 17);
    let coverage = Explorer::default().faults(faults).check(&pool_image(), nothing, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    assert_eq!(coverage.faults.tried, 2 * (4096 * 8 + 64), "every bit and every line");
}

#[test]
fn faults_in_both_headers_are_refused() {
    let check = |crash: &Crash<()>| match Pool::attach(Arc::clone(crash.pmem())) {
        Ok(pool) => {
            assert!(!hits(crash, &PRIMARY) || !hits(crash, &BACKUP), "{:?}", pool.header_state());
            assert_eq!(get(&pool, "counter").unwrap(), Some(1));
        }
        Err(PoolError::HeadersCorrupted { .. }) => assert!(hits(crash, &PRIMARY) && hits(crash, &BACKUP)),
        Err(PoolError::NotAPool) => {
            let is_magic = |fault: &Fault| [PRIMARY.start, BACKUP.start].contains(&fault.range().start);
            assert!(
                crash.faults().len() == 2 && crash.faults().iter().all(is_magic),
                "the first lines of both headers must be lost"
            );
        }
        Err(other) => panic!("{other}"),
    };
    let faults = Faults::none().poison(2).within(PRIMARY).within(BACKUP);
    let coverage = Explorer::default().faults(faults).check(&pool_image(), nothing, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    assert_eq!(coverage.faults.tried, 128 + 128 * 127 / 2);
}

/// Checks that each root has one of its possible values, or that its lookup reports corruption. `counters` are the possible values of `counter`.
fn check_roots(crash: &Crash<()>, pool: &SimPool, counters: &[u64]) {
    let is_corrupted = pool.corrupted_root_count() > 0;
    assert!(!is_corrupted || hits(crash, &ROOTS));
    let found = [get(pool, "counter"), get(pool, "other"), get(pool, "absent")];
    for (found, right) in found.into_iter().zip([counters, &[9], &[]]) {
        match found {
            Ok(Some(value)) => assert!(right.contains(&value), "{value} is none of {right:?}"),
            Ok(None) => assert!(right.is_empty(), "a root is lost without a report"),
            Err(RootError::Corrupted { slots }) => assert!(is_corrupted && slots == 1),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn fault_in_roots_never_changes_a_root() {
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).unwrap();
        assert_eq!(pool.header_state(), HeaderState::Intact);
        check_roots(crash, &pool, &[1]);
    };
    let faults = Faults::none().flips(1).poison(1).within(ROOTS);
    let coverage = Explorer::default().faults(faults).check(&pool_image(), nothing, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    assert_eq!(coverage.faults.tried, 3 * (64 * 8 + 1));
}

/// A stray write, or a medium that replaces a lost line with zeroes, has zeroed a slot in use, a free slot, the first word of a slot, or all slots.
#[test]
fn zeroed_root_slots_are_reported() {
    let first_free = 2;
    for (slots, len_bytes) in
        [(0..1, 64), (1..2, 64), (first_free..first_free + 1, 64), (0..1, 8), (0..64, 64)]
    {
        let pmem = Arc::new(SimPmem::from_image(&pool_image(), Model::Px86Line));
        for slot in slots.clone() {
            pmem.store(4096 + 64 * slot, &[0; 64][..len_bytes]);
        }
        let pool = Pool::attach(pmem).unwrap();
        assert_eq!(pool.corrupted_root_count() as u64, slots.end - slots.start);
        for (slot, name) in ["counter", "other", "absent"].into_iter().enumerate() {
            match get(&pool, name) {
                Ok(Some(_)) => assert!(!slots.contains(&(slot as u64))),
                Err(RootError::Corrupted { .. }) => {}
                other => panic!("{name} with slots {slots:?} zeroed: {other:?}"),
            }
        }
    }
}

#[test]
fn crash_and_fault_in_roots_never_change_a_root() {
    let operation = |run: &Run<()>| {
        let pool = Pool::attach(Arc::clone(run.pmem())).unwrap();
        set(&pool, "counter", 2, 2);
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let pool = Pool::attach(Arc::clone(crash.pmem())).unwrap();
        check_roots(crash, &pool, if crash.acked().is_empty() { &[1, 2] } else { &[2] });
    };
    let faults = Faults::none().flips(1).poison(1).within(ROOTS);
    let coverage = Explorer::default().faults(faults).check(&pool_image(), operation, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
}

fn longer_image() -> Image {
    let sim = Arc::new(SimPmem::new(POOL_BYTES));
    set(&Pool::format(Arc::clone(&sim), &options(1)).unwrap(), "counter", 0, 7);
    longer(&sim.to_image(), LONGER_BYTES)
}

fn check_growth(crash: &Crash<()>) -> Result<(), String> {
    match Pool::attach(Arc::clone(crash.pmem())) {
        Ok(pool) => {
            let is_right =
                crate::pools::get(&pool, "counter") == Some(7) && pool.uuid() == Uuid::from_bytes([1; 16]);
            let is_long = pool.pool_bytes() == LONGER_BYTES;
            match (is_right, is_long, crash.acked().len()) {
                (true, true, _) | (true, false, 0) => Ok(()),
                other => Err(format!("{other:?}, faults {:?}", crash.faults())),
            }
        }
        // Two copies are lost, one by the fault and one by the crash.
        Err(PoolError::HeadersCorrupted { .. }) => Ok(()),
        Err(error) => Err(format!("{error}, faults {:?}", crash.faults())),
    }
}

/// The ranges, in a header's page, of the lines that are not zero.
const LINES: [Range<u64>; 3] = [0..64, 64..128, 4032..4096];

/// Grows the pool with faults in these parts of each page that may hold a header, one page at a time.
fn explore_growth(explorer: &Explorer, faults: &Faults, parts: &[Range<u64>]) {
    let grow = |run: &Run<()>| {
        Pool::attach(Arc::clone(run.pmem())).unwrap().extend().unwrap();
        run.ack(());
    };
    for page in [0, POOL_BYTES - 4096, LONGER_BYTES - 4096] {
        let within = |faults: Faults, part: &Range<u64>| faults.within(page + part.start..page + part.end);
        let faults = parts.iter().fold(faults.clone(), within);
        let coverage = explorer.clone().faults(faults).check(&longer_image(), grow, check_growth);
        println!("{page}: {coverage}");
    }
}

/// An explorer that crashes the growth at every point.
fn crasher() -> Explorer {
    Explorer::new(Model::Px86Line).crashes(1).choices_per_point(512)
}

/// An explorer that kills the growth before each event, and crashes the next process. It has fewer choices, because those of both multiply.
fn killer(choices: u64) -> Explorer {
    crasher().kills(1).choices_per_point(choices).nested_choices_per_point(choices / 4)
}

#[test]
fn growth_survives_poisoned_header_line() {
    let faults = Faults::none().poison(1);
    explore_growth(&crasher(), &faults, &LINES);
    explore_growth(&killer(64), &faults, &LINES);
}

#[test]
fn growth_survives_flipped_header_bit() {
    let faults = Faults::none().flips(1);
    // Each bit is a fault. The first line holds the magic.
    explore_growth(&crasher(), &faults, if crate::is_deep() { &LINES } else { &LINES[..1] });
    if crate::is_deep() {
        explore_growth(&killer(4), &faults, &LINES[..1]);
    }
}
