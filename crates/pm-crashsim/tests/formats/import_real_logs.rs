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

use crate::common::*;
use pm_crashsim::import::{Imported, PmemcheckOptions, pmemcheck};

const BUG: &str = include_str!("../fixtures/list_bug.pmemcheck.log");
const FIXED: &str = include_str!("../fixtures/list_fixed.pmemcheck.log");

/// Where the pool's file is mapped.
const BASE: u64 = 0x520_0000;
/// `struct root`: the count, and the head on a line of its own.
const COUNT: u64 = 0x55c_0550 - BASE;
const HEAD: u64 = 0x55c_0590 - BASE;
/// In a `PMEMoid`, the offset in the pool, after the pool's number.
const OID_OFFSET: u64 = 8;
/// In a `struct node`, after the value.
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

/// Of `big.c`: one transaction of libpmemobj that raises the first 2,052 words of an array from 0 to 1, each after an undo entry of its own
/// (`pmemobj_tx_add_range_direct`), and allocates an object for each.
const TRANSACTION: &str = include_str!("../fixtures/transaction_of_2052.pmemcheck.log");

const WORDS: u64 = 2052;
/// In the pool, whose file is mapped at [`BASE`] too.
const ARRAY: u64 = 0x48_4450;
/// What an undo entry has in the upper bits of its first word (libpmemobj's `ulog.h`, `ULOG_OPERATION_BUF_CPY`).
const UNDO: u64 = 0xC << 60;

/// Takes a few seconds.
const RECOVERIES: u64 = 300;

/// Where the undo entry of each word lies: the first word of an entry is the operation and the offset of what it restores.
fn undo_entries() -> Vec<u64> {
    (0..WORDS)
        .map(|number| {
            let value = format!(";{:#x};0x8|", UNDO | (ARRAY + 8 * number));
            let (before, _) = TRANSACTION.split_once(&value).unwrap();
            let (_, address) = before.rsplit_once("STORE;0x").unwrap();
            u64::from_str_radix(address, 16).unwrap() - BASE
        })
        .collect()
}

/// Explores at most `recoveries` recoveries of the transaction: each changed word has a complete undo entry.
fn explore_transaction(log: &str, recoveries: u64) -> Result<Coverage, Box<Failure>> {
    let file = import(log).file;
    let entries = undo_entries();
    let check = |crash: &Crash<()>| {
        let pmem = crash.pmem();
        for (place, &entry) in (ARRAY..).step_by(8).zip(&entries) {
            let found = (pmem.load_u64(place), pmem.load_u64(entry), pmem.load_u64(entry + 16));
            match found {
                (0, ..) => {}
                // Of 8 bytes, and with a checksum.
                (1, undo, 8) if undo == UNDO | place && pmem.load_u64(entry + 8) != 0 => {}
                _ => return Err(format!("the word at {place:#x} and its entry hold {found:x?}")),
            }
        }
        Ok(())
    };
    Explorer::of(&file).crashes(1).recoveries(recoveries).explore_trace(&file, check)
}

#[test]
fn transaction_of_2052_words_is_imported_and_explored_to_a_bound() {
    let imported = import(TRANSACTION);
    let tally = &imported.tally;
    assert_eq!((tally.stores, tally.flushes, tally.fences), (57_469, 11_137, 15_742), "{tally}");
    assert_eq!(imported.file.start().len_bytes(), 16 << 20);

    let start = Instant::now();
    let coverage = explore_transaction(TRANSACTION, RECOVERIES).unwrap();
    // Each word has at least one point: before the flush of its entry.
    assert!(coverage.levels[0].points > WORDS && coverage.recoveries() == RECOVERIES, "{coverage}");
    assert!(start.elapsed() < Duration::from_secs(60), "took {:?}", start.elapsed());
}

/// Without the flushes of the undo entries nothing makes them durable before the words.
#[test]
fn undo_entries_that_are_not_flushed_are_missed() {
    let entries = undo_entries();
    let mut log = String::new();
    for record in TRANSACTION.split_inclusive('|') {
        let flushed = record.strip_prefix("FLUSH;0x").and_then(|range| range.strip_suffix(";0x40|"));
        let flushed = flushed.map(|address| u64::from_str_radix(address, 16).unwrap().wrapping_sub(BASE));
        if flushed.is_none_or(|line| entries.binary_search(&line).is_err()) {
            log.push_str(record);
        }
    }
    let failure = explore_transaction(&log, RECOVERIES).unwrap_err();
    assert!(failure.message.starts_with("the word at 0x48"), "{failure}");
}
