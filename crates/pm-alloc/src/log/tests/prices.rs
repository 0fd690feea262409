//! The cost of a commit in lines and fences.

use super::support::{at, layout, recover, words};
use crate::log::{LaneGuard, Log, Writes};
use pm_core::{Counting, Counts, Pmem};
use pm_crashsim::SimPmem;

fn counted(operation: impl FnOnce(&Counting<SimPmem>, &Log) -> Counts) -> (u64, u64) {
    let pmem = Counting::new(SimPmem::new(1 << 15));
    let layout = layout(30);
    crate::log::format(&pmem, &layout);
    let (log, _) = recover(&pmem, &layout);
    let Counts { lines, fences, .. } = operation(&pmem, &log);
    (lines, fences)
}

fn commit(writes: &Writes) -> (u64, u64) {
    counted(|pmem, log| {
        let mut lane = LaneGuard::acquire(log);
        // The first commit has no target lines of an earlier commit to flush.
        lane.commit(pmem, writes).unwrap();
        pmem.count(|| lane.commit(pmem, writes).unwrap()).1
    })
}

#[test]
fn empty_commit_costs_nothing() {
    assert_eq!(commit(&Writes::default()), (0, 0));
    let rolled_back = counted(|pmem, log| pmem.count(|| LaneGuard::acquire(log).roll_back(pmem).unwrap()).1);
    assert_eq!(rolled_back, (0, 0));
}

#[test]
fn range_costs_two_lines_and_one_fence() {
    for len in [1, 8, 16, 48] {
        let mut writes = Writes::default();
        writes.bytes(at(3) + 1, &vec![1; len]);
        assert_eq!(commit(&writes), (2, 1), "{len} bytes");
    }
}

#[test]
fn three_words_cost_four_lines_and_one_fence() {
    assert_eq!(commit(&words(&[(at(0), 1), (at(1), 1), (at(2), 1)])), (4, 1));
    assert_eq!(commit(&words(&[(at(0), 1), (at(0) + 16, 1), (at(0) + 32, 1)])), (2, 1), "in one line");
}

#[test]
fn word_in_place_costs_one_line_and_one_fence() {
    let free = counted(|pmem, log| pmem.count(|| crate::log::store_u64(log, pmem, at(0), 1).unwrap()).1);
    assert_eq!(free, (1, 1));
    let live = counted(|pmem, log| {
        LaneGuard::acquire(log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
        pmem.count(|| crate::log::store_u64(log, pmem, at(0), 2).unwrap()).1
    });
    assert_eq!(live, (2, 1), "a live entry stores there");
}

#[test]
fn pair_in_place_costs_one_line_and_one_fence() {
    let free =
        counted(|pmem, log| pmem.count(|| crate::log::store_u64_pair(log, pmem, at(0), [1, 2]).unwrap()).1);
    assert_eq!(free, (1, 1));
    let live = counted(|pmem, log| {
        LaneGuard::acquire(log).commit(pmem, &words(&[(at(0) + 8, 1)])).unwrap();
        pmem.count(|| crate::log::store_u64_pair(log, pmem, at(0), [1, 2]).unwrap()).1
    });
    assert_eq!(live, (2, 1), "a live entry stores there");
}

#[test]
fn long_write_costs_three_fences_or_two_if_deferred() {
    for (is_deferred, fences) in [(false, 3), (true, 2)] {
        let cost = counted(|pmem, log| {
            let mut lane = LaneGuard::acquire(log);
            pmem.count(|| {
                lane.undo(pmem, at(0), 480).unwrap();
                pmem.store(at(0), &[1; 480]);
                let committed = if is_deferred {
                    lane.commit_deferred(pmem)
                } else {
                    lane.commit(pmem, &Writes::default())
                };
                committed.unwrap();
            })
            .1
        });
        // The lines that the caller flushes are not counted. A deferred commit leaves its own lines, the entry and the lane's header, to the next
        // commit.
        let commit = if is_deferred { 0 } else { 2 };
        assert_eq!(cost, (10 + commit, fences));
    }
}

#[test]
fn retiring_lanes_costs_two_fences() {
    let cost = counted(|pmem, log| {
        let (mut one, mut two) = (LaneGuard::acquire(log), LaneGuard::acquire(log));
        one.commit(pmem, &words(&[(at(0), 1)])).unwrap();
        let last = two.commit(pmem, &words(&[(at(1), 1)])).unwrap();
        let (_, cost) = pmem.count(|| log.raise_checkpoint(pmem, last).unwrap());
        assert_eq!(log.checkpoint_lsn(), last);
        cost
    });
    assert_eq!(cost, (2 + 4, 2), "a target line and two header lines for each lane");
}

#[test]
fn long_write_with_other_writes_costs_four_fences() {
    let cost = counted(|pmem, log| {
        let mut lane = LaneGuard::acquire(log);
        pmem.count(|| {
            lane.undo(pmem, at(0), 480).unwrap();
            pmem.store(at(0), &[1; 480]);
            lane.commit(pmem, &words(&[(at(9), 1)])).unwrap();
        })
        .1
    });
    assert_eq!(cost, (10 + 3, 4), "the entries, the word's line and the lane's header");
}

#[test]
fn opening_a_closed_log_costs_one_fence() {
    let (layout, floor) = (layout(30), 2);
    let lanes = 2 * (1 + 30 + 1);
    let pmem = Counting::new(SimPmem::new(1 << 15));
    crate::log::format(&pmem, &layout);
    let open = || {
        let ((log, _), Counts { lines, fences, .. }) = pmem.count(|| recover(&pmem, &layout));
        (log, (lines, fences))
    };
    assert_eq!(open().1, (floor, 1));
    let (mut log, cost) = open();
    assert_eq!(cost, (lanes + floor, 2), "the log was not closed before");
    log.close(&pmem).unwrap();
    let (log, cost) = open();
    assert_eq!(cost, (floor, 1));
    LaneGuard::acquire(&log).commit(&pmem, &words(&[(at(0), 1)])).unwrap();
    assert_eq!(open().1, (lanes + 1 + floor, 3), "a line in place");
}
