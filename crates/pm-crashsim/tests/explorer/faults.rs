//! Media faults: a checksum detects them, its absence is found, and the counts are right.

use crate::common::*;
use pm_crashsim::{Fault, Faults};

const RECORD: u64 = 64;
const COPY: u64 = 256;
const REGION_BYTES: u64 = 4096;

/// FNV-1a, 64 bits: a change of one byte always changes it.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// A value, followed by its checksum.
fn write(pmem: &SimPmem, at: u64, value: u64) -> Done {
    pmem.store_u64(at, value);
    pmem.store_u64(at + 8, checksum(&value.to_le_bytes()));
    pmem.persist(at, 16)
}

fn read(pmem: &SimPmem, at: u64) -> Result<u64, &'static str> {
    let value = pmem.load_u64(at);
    match pmem.load_u64(at + 8) == checksum(&value.to_le_bytes()) {
        true => Ok(value),
        false => Err("the checksum is wrong"),
    }
}

fn image_of_seven() -> Image {
    let pmem = SimPmem::new(REGION_BYTES);
    write(&pmem, RECORD, 7).unwrap();
    pmem.to_image()
}

/// Writes a copy of the record, and then the record itself, so that one of the two is whole at every moment.
fn replace(run: &Run<()>) -> Done {
    write(run.pmem(), COPY, 8)?;
    write(run.pmem(), RECORD, 8)?;
    run.ack(());
    Ok(())
}

/// A corrupted record may be lost, a valid one may not.
fn check_checksummed(crash: &Crash<()>) -> Result<(), String> {
    let pmem = crash.pmem();
    match (read(pmem, RECORD).or_else(|_| read(pmem, COPY)), crash.acked().len()) {
        (Ok(7), 0) | (Ok(8), _) => Ok(()),
        (Err(_), _) if !crash.faults().is_empty() => Ok(()),
        (found, _) => Err(format!("{found:?}")),
    }
}

#[test]
fn checksum_detects_every_flipped_bit_and_poisoned_line() {
    let faults = Faults::none().flips(1).poison(1).within(RECORD..RECORD + 16);
    let coverage = Explorer::default().faults(faults).check(&image_of_seven(), replace, check_checksummed);
    assert!(coverage.is_exhaustive());
    // 128 bits and a line, on each image.
    assert_eq!(coverage.faults.legal, u128::from(coverage.faults.images) * 129);
    assert_eq!(u128::from(coverage.faults.recoveries), coverage.faults.legal);
}

#[test]
fn fault_without_a_checksum_is_found_and_replays() {
    let operation = |run: &Run<()>| write(run.pmem(), RECORD, 8);
    let check = |crash: &Crash<()>| match crash.pmem().load_u64(RECORD) {
        7 | 8 => Ok(()),
        found => Err(format!("found {found}")),
    };
    Explorer::default().check(&image_of_seven(), operation, check);
    for (faults, named) in [
        (Faults::none().flips(1), "bit 0 of byte 0x40 flipped: found 6"),
        (Faults::none().poison(1), "line 0x40 poisoned: found 16059518370053021406"),
    ] {
        let explorer = Explorer::default().faults(faults);
        for failure in fails_and_replays(&explorer, &image_of_seven(), operation, check) {
            assert!(failure.to_string().starts_with(&format!("with {named}")), "{failure}");
        }
    }
}

#[test]
fn lines_read_only_after_a_fault_are_crashed() {
    // The copy has no checksum. It is read only when the record is corrupted, and may be torn.
    let operation = |run: &Run<()>| run.pmem().store(COPY - 8, &[8; 16]);
    let check = |crash: &Crash<()>| {
        let pmem = crash.pmem();
        if read(pmem, RECORD).is_ok() {
            return Ok(());
        }
        match (pmem.load_u64(COPY - 8), pmem.load_u64(COPY)) {
            (first, second) if first == second => Ok(()),
            torn => Err(format!("the copy is torn: {torn:?}")),
        }
    };
    Explorer::default().check(&image_of_seven(), operation, check);
    let explorer = Explorer::default().faults(Faults::none().poison(1).within(RECORD..RECORD + 1));
    let failure = explorer.explore(&image_of_seven(), operation, check).unwrap_err();
    assert!(failure.to_string().contains("line 0x40 poisoned: the copy is torn"), "{failure}");
}

#[test]
fn faults_in_unread_lines_cost_nothing_and_samples_are_counted() {
    let elsewhere = Explorer::default().faults(Faults::none().flips(2).within(1024..1040));
    let coverage = elsewhere.check(&image_of_seven(), replace, check_checksummed);
    assert!(coverage.is_exhaustive());
    assert_eq!(coverage.faults.recoveries, 0);

    let faults = Faults::none().flips(3).within(RECORD..RECORD + 16).sets_per_image(300);
    let explore = |seed| {
        let explorer = Explorer::default().faults(faults.clone()).seed(seed);
        explorer.check(&image_of_seven(), replace, check_checksummed)
    };
    let coverage = explore(1);
    let images = u128::from(coverage.faults.images);
    assert!(!coverage.is_exhaustive());
    assert_eq!(coverage.faults.legal, images * (128 + 128 * 127 / 2 + 128 * 127 * 126 / 6));
    assert_eq!(coverage.faults.tried, images * 300);
    assert!(coverage.to_string().contains("; media faults: tried "), "{coverage}");
    assert_eq!(explore(1), coverage, "the same seed, the same faults");
}

#[test]
fn reduction_does_not_change_the_faults() {
    let faults = Faults::none().flips(1).poison(2).within(RECORD..RECORD + 16).within(COPY..COPY + 1);
    let whole = |reduce| {
        let explorer = Explorer::default().faults(faults.clone()).reduce(reduce);
        explorer.check(&image_of_seven(), replace, check_checksummed)
    };
    let (reduced, all) = (whole(true), whole(false));
    assert!(reduced.is_exhaustive() && all.is_exhaustive());
    assert!(reduced.faults.recoveries < all.faults.recoveries);
    assert_eq!(u128::from(all.faults.recoveries), all.faults.legal);
}

#[test]
fn check_receives_the_faults() {
    let check = |crash: &Crash<()>| {
        let pmem = crash.pmem();
        let lines = [RECORD, COPY].map(|at| pmem.load_u64(at) == 0xDEDE_DEDE_DEDE_DEDE);
        for (at, is_poisoned) in [RECORD, COPY].into_iter().zip(lines) {
            let is_reported = crash.faults().contains(&Fault::Poison { offset: at });
            assert_eq!(is_reported, is_poisoned, "{:?}", crash.faults());
            assert!(crash.faults().iter().all(|fault| fault.range().start % 64 == 0));
        }
    };
    let faults = Faults::none().poison(2).within(RECORD..RECORD + 8).within(COPY..COPY + 8);
    let coverage = Explorer::default().faults(faults).check(&image_of_seven(), |_: &Run<()>| (), check);
    assert_eq!((coverage.faults.images, coverage.faults.tried), (1, 3), "each line, and both");
}
