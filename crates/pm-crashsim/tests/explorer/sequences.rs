//! Sequences of operations: sound structures pass, and planted bugs are found in as few operations as they need.

use crate::harness::*;
use crate::subjects::cell::{self, Cell};
use crate::subjects::log::{self, Flaw as LogFlaw, Log, LogOp};
use crate::subjects::table::{self, Flaw as TableFlaw, Table, TableOp};
use pm_crashsim::Durability;

const LOG_OPS: [LogOp; 3] = [LogOp::Append(1), LogOp::Append(2), LogOp::Sync];

fn log(is_buffered: bool, flaw: LogFlaw) -> Sequences<Log> {
    let durability = if is_buffered { Durability::Buffered } else { Durability::Strict };
    Sequences::new(Log { is_buffered, flaw }, log::LEN_BYTES).unwrap().durability(durability)
}

/// The operations of a failure in short.
fn ops_of<Op: core::fmt::Debug>(failure: &SequenceFailure<Op>) -> String {
    format!("{:?}", failure.ops)
}

fn table(flaw: TableFlaw) -> Sequences<Table> {
    Sequences::new(Table(flaw), table::LEN_BYTES).unwrap()
}

#[test]
fn sound_log_passes_under_every_model() {
    for model in Model::ALL {
        for is_buffered in [false, true] {
            let explorer = Explorer::new(model).nested_choices_per_point(1 << 12);
            let coverage = log(is_buffered, LogFlaw::None).explorer(explorer).check_all(&LOG_OPS, 2);
            assert_eq!(coverage.sequences, 3 + 9, "{model}");
            assert!(coverage.is_exhaustive && coverage.recoveries > 50, "{model}: {coverage}");
        }
    }
}

#[test]
fn buffered_log_is_not_strict() {
    let log = log(true, LogFlaw::None).durability(Durability::Strict);
    let failure = log.explore_all(&LOG_OPS, 2).unwrap_err();
    assert_eq!(ops_of(&failure), "[Append(1)]");
    assert_eq!(problem(&failure), "the state recovered is [], which is not allowed");
}

#[test]
fn torn_record_is_found_by_one_append() {
    let failure = log(false, LogFlaw::TrustsNumbers).explore_all(&[LogOp::Append(5)], 3).unwrap_err();
    // The first record ends with its line; the second straddles one.
    assert_eq!(failure.ops.len(), 1, "{failure}");
    let failure = log(false, LogFlaw::FlushesFirstLine).explore_all(&[LogOp::Append(5)], 3).unwrap_err();
    assert_eq!(failure.ops.len(), 2, "{failure}");
}

/// The third record has its line to itself except for the end of the second, whose begin is lost: what is left of the
/// third comes back as soon as the log has a second record again.
#[test]
fn stale_record_is_found_by_operations_after_recovery() {
    let failure = log(true, LogFlaw::KeepsStale).explore_all(&[LogOp::Append(1)], 4).unwrap_err();
    assert_eq!(ops_of(&failure), "[Append(1), Append(1), Append(1)]", "{failure}");
    let expected = "Append(1) on the recovered structure: is [1, 1], and opened again, [1, 1, 1], not [1, 1]";
    assert_eq!(problem(&failure), expected, "{failure}");
}

/// Recovery clears the third record. Were that not durable before the log is used, a crash in the append of a second
/// one could leave both, where each word of a line is kept or lost by itself.
#[test]
fn cleared_stale_record_is_durable() {
    let subject = Log { is_buffered: false, flaw: LogFlaw::None };
    let pmem = Arc::new(SimPmem::new(log::LEN_BYTES));
    let mut written = subject.create(Arc::clone(&pmem)).unwrap();
    for value in 1..=3 {
        subject.apply(&mut written, &LogOp::Append(value)).unwrap();
    }
    pmem.store(log::RECORD, &[0; log::RECORD_LEN]);

    let operation = |run: &Run<()>| {
        let mut recovered = subject.open(Arc::clone(run.pmem()))?;
        subject.apply(&mut recovered, &LogOp::Append(2)).map(|()| run.ack(()))
    };
    let check = |crash: &Crash<'_, ()>| {
        let found = subject.observe(&subject.open(Arc::clone(crash.pmem())).unwrap()).unwrap();
        assert!(found == [1, 2] || found == [1] && crash.acked().is_empty(), "{found:?}");
    };
    for model in Model::ALL {
        Explorer::new(model).check(&pmem.to_image(), operation, check);
    }
}

#[test]
fn sound_table_passes() {
    let ops = [TableOp::Put(1, 10), TableOp::Put(1, 11), TableOp::Put(9, 12), TableOp::Remove(1)];
    let coverage = table(TableFlaw::None).check_all(&ops, 3);
    assert_eq!(coverage.sequences, 4 + 16 + 64);
    assert!(coverage.is_exhaustive, "{coverage}");
}

#[test]
fn each_bug_of_a_table_is_found_in_as_few_operations_as_it_needs() {
    use TableOp::{Put, Remove};
    let long = [Put(3, 1), Put(1, 10), Remove(3), Put(9, 5), Put(1, 11), Put(3, 2), Remove(9), Remove(1)];
    for (flaw, expected) in [
        (TableFlaw::TokenTooEarly, "[Put(3, 1)]"),
        (TableFlaw::OldGoesFirst, "[Put(1, 10), Put(1, 11)]"),
        (TableFlaw::RemovalNotFenced, "[Put(3, 1), Remove(3)]"),
        (TableFlaw::KeepsBothVersions, "[Put(1, 10), Put(1, 11), Remove(1)]"),
    ] {
        assert_eq!(ops_of(&table(flaw).explore(&long).unwrap_err()), expected, "{flaw:?}");
    }
    table(TableFlaw::None).check(&long);
}

/// Each state on its own is allowed. That recovery showed the one, and the next crash left the other, is not.
#[test]
fn state_found_by_recovery_is_durable() {
    let cells = |forgets| Sequences::new(Cell { forgets }, cell::LEN_BYTES).unwrap();
    let coverage = cells(false).check_all(&[1, 2], 2);
    assert!(coverage.is_exhaustive, "{coverage}");
    let failure = cells(true).explore_all(&[1, 2], 2).unwrap_err();
    assert_eq!(ops_of(&failure), "[1]", "a crash right after recovery");
    assert_eq!(problem(&failure), "recovery returned 1, and after a crash then, is 0");
}

#[test]
fn failure_reports_operations_and_states() {
    let failure = log(false, LogFlaw::FlushesFirstLine)
        .explore(&[LogOp::Append(7), LogOp::Append(8), LogOp::Append(9)])
        .unwrap_err();
    let story = failure.to_string();
    for part in [
        "2 operations fail, [Append(7), Append(8)]: the state recovered is [7], which is not allowed",
        "operation 1: Append(7): returned",
        "operation 2: Append(8): returned",
        "allowed, after 2: [7, 8]",
        "crash right ",
        "Explorer::default().replay(",
    ] {
        assert!(story.contains(part), "{part} is not in: {story}");
    }
}

#[test]
fn failure_replays_by_name() {
    let sequences = table(TableFlaw::OldGoesFirst);
    let ops = [TableOp::Put(2, 1), TableOp::Put(1, 10), TableOp::Put(1, 11)];
    let found = sequences.explore(&ops).unwrap_err();
    let explorer = Explorer::default().replay(name(&found.failure));
    let again = sequences.explorer(explorer).explore(&found.ops).unwrap_err();
    assert_eq!(ops_of(&again), "[Put(1, 10), Put(1, 11)]");
    assert_eq!((&again.failure.message, again.failure.coverage.recoveries()), (&found.failure.message, 1));
}

#[test]
fn each_flush_and_fence_of_the_table_is_needed() {
    use TableOp::{Put, Remove};
    let redundant = table(TableFlaw::None).redundant_sites(&[Put(1, 10), Put(1, 11), Remove(1)], 2).unwrap();
    assert_eq!(redundant, []);
}

#[test]
fn full_table_accepts_new_versions() {
    let full: Vec<TableOp> = (0..8).map(|key| TableOp::Put(key, 1)).chain([TableOp::Put(0, 2)]).collect();
    assert!(table(TableFlaw::None).check(&full).is_exhaustive());
    table(TableFlaw::None).check(&vec![TableOp::Put(1, 1); 9]);
}
