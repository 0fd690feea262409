//! Logs as pmemcheck itself wrote them, of a program that uses libpmemobj, with a bug and without: the bug is found at its line.
//!
//! The program, `list.c`, puts two nodes at the head of a list:
//!
//! ```c
//! 28        r->count++;
//! 29        if (fixed) pmemobj_persist(pop, &r->count, 8);
//! 30        r->head = n;
//! 31        pmemobj_persist(pop, &r->head, sizeof r->head);
//! 32        pmemobj_persist(pop, &r->count, 8);
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::Pmem;
use pm_crashsim::import::{Imported, PmemcheckOptions, pmemcheck};
use pm_crashsim::{Crash, Explorer, Failure};

const BUG: &str = include_str!("fixtures/list_bug.pmemcheck.log");
const FIXED: &str = include_str!("fixtures/list_fixed.pmemcheck.log");

/// Where the pool's file is mapped.
const BASE: u64 = 0x520_0000;
/// `struct root`: the count, and the head on a line of its own.
const COUNT: u64 = 0x55c_0550 - BASE;
const HEAD: u64 = 0x55c_0590 - BASE;
/// Of a `PMEMoid`, the offset in the pool, behind the pool's own number.
const OID_OFFSET: u64 = 8;
/// Of a `struct node`, behind the value.
const NEXT: u64 = 8;

fn import(log: &str) -> Imported {
    pmemcheck(log.as_bytes(), &PmemcheckOptions::new()).unwrap()
}

/// What `list.c check` checks: each node has its value, and at most one of them is not counted or counted too early.
fn check(crash: &Crash<()>) -> Result<(), String> {
    let pmem = crash.pmem();
    let count = pmem.load_u64(COUNT);
    let (mut nodes, mut node) = (0, pmem.load_u64(HEAD + OID_OFFSET));
    while node != 0 {
        nodes += 1;
        match pmem.load_u64(node) {
            7 => node = pmem.load_u64(node + NEXT + OID_OFFSET),
            value => return Err(format!("node {nodes} has the value {value}")),
        }
    }
    match count {
        count if count == nodes || count == nodes + 1 => Ok(()),
        count => Err(format!("count {count}, nodes {nodes}")),
    }
}

fn crashed(log: &str) -> Result<(), Box<Failure>> {
    let file = import(log).file;
    let coverage = Explorer::of(&file).crashes(1).explore_trace(&file, check)?;
    assert!(coverage.is_exhaustive(), "{coverage}");
    Ok(())
}

#[test]
fn all_records_of_a_real_log_are_read() {
    for log in [BUG, FIXED] {
        let imported = import(log);
        // Each record begins with a bar; the last one is STOP.
        let records = |kind: &str| log.matches(kind).count() as u64;
        assert_eq!(imported.tally.stores, records("|STORE;"));
        assert_eq!(imported.tally.flushes, records("|FLUSH;"));
        assert_eq!(imported.tally.fences, records("|FENCE"));
        assert!(imported.tally.to_string().starts_with("70 stores, "), "{}", imported.tally);
        assert_eq!(imported.file.start().len_bytes(), 8 << 20);
    }
}

#[test]
fn bug_of_a_real_program_is_found_at_its_line() {
    let failure = crashed(BUG).unwrap_err();
    assert_eq!(failure.message, "count 0, nodes 1");
    let [crash] = failure.crashes.as_slice() else { panic!("{failure}") };
    let lost: Vec<String> = crash.lost.iter().map(|store| store.location.to_string()).collect();
    assert_eq!(lost, ["list.c:28"], "{failure}");
}

#[test]
fn fixed_program_survives_every_crash() {
    crashed(FIXED).unwrap();
}
