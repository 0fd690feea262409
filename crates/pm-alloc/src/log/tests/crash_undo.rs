//! Crashes of long writes in place that are committed, deferred, or rolled back.

use super::support::Mixtures::{All, Sampled};
use super::support::{at, commit_in, explore, explore_from, formatted, image, layout, store_u64};
use crate::log::{LaneGuard, Log};
use pm_core::Pmem;
use pm_crashsim::Run;
use std::thread;

/// Writes `value` to the first words of these lines, after undo entries for them.
fn overwrite<P: Pmem>(pmem: &P, lane: &mut LaneGuard<'_>, lines: core::ops::Range<u64>, value: u64) {
    for line in lines {
        lane.undo(pmem, at(line), 8).unwrap();
        pmem.store_u64(at(line), value);
        pmem.flush(at(line), 8);
    }
}

#[test]
fn long_write_is_atomic() {
    let offsets = [at(0), at(0) + 40, at(0) + 48];
    explore(&layout(8), All, offsets, &[[0; 3], [ONES; 3], [2, ONES, ONES]], |run, log| {
        let mut lane = LaneGuard::acquire(log);
        lane.undo(run.pmem(), at(0), 56).unwrap();
        run.pmem().store(at(0), &[0x11; 56]);
        run.pmem().flush(at(0), 56);
        commit_in(&mut lane, run, &[]);
        commit_in(&mut lane, run, &[(at(0), 2)]);
    });
}

const ONES: u64 = 0x1111_1111_1111_1111;

#[test]
fn rolled_back_write_stays_rolled_back() {
    let states = [[1, 1], [1, 1], [3, 1], [3, 4]];
    let layout = layout(12);
    let before = image(|pmem| {
        crate::log::format(pmem, &layout);
        [at(0), at(1)].iter().for_each(|&offset| pmem.store_u64(offset, 1));
    });
    explore_from(
        &before,
        &layout,
        Sampled,
        [at(0), at(1)],
        |done| states[done..].iter().copied().take(2).collect(),
        |run, log| {
            let mut lane = LaneGuard::acquire(log);
            overwrite(run.pmem(), &mut lane, 0..2, 2);
            // Logs the same bytes again: rolling back restores the first contents.
            overwrite(run.pmem(), &mut lane, 0..1, 7);
            lane.roll_back(run.pmem()).unwrap();
            run.ack(());
            drop(lane);
            let (mut lane, mut other) = (LaneGuard::acquire(log), LaneGuard::acquire(log));
            commit_in(&mut other, run, &[(at(0), 3)]);
            commit_in(&mut lane, run, &[(at(1), 4)]);
        },
    );
}

#[test]
fn in_place_and_logged_writes_commit_together() {
    let states = [[0, 0], [1, 1], [2, 2]];
    explore(&layout(8), All, [at(0), at(1)], &states, |run, log| {
        let mut lane = LaneGuard::acquire(log);
        for value in 1..=2 {
            overwrite(run.pmem(), &mut lane, 0..1, value);
            commit_in(&mut lane, run, &[(at(1), value)]);
        }
    });
}

#[test]
fn replay_does_not_overwrite_long_write() {
    let states = [[0, 0], [1, 0], [2, 0], [2, 3]];
    explore(&layout(8), All, [at(0), at(1)], &states, |run, log| {
        let (mut here, mut there) = (LaneGuard::acquire(log), LaneGuard::acquire(log));
        commit_in(&mut there, run, &[(at(0), 1)]);
        overwrite(run.pmem(), &mut here, 0..1, 2);
        commit_in(&mut here, run, &[]);
        commit_in(&mut here, run, &[(at(1), 3)]);
    });
}

#[test]
fn lane_writes_in_place_over_its_own_commit() {
    explore(&layout(8), All, [at(0)], &[[0], [1], [2]], |run, log| {
        let mut lane = LaneGuard::acquire(log);
        commit_in(&mut lane, run, &[(at(0), 1)]);
        overwrite(run.pmem(), &mut lane, 0..1, 2);
        commit_in(&mut lane, run, &[]);
    });
}

/// A deferred commit may be lost, but only completely, and only with all later commits.
#[test]
fn later_commit_implies_earlier_deferred_commit() {
    for by_word in [false, true] {
        explore_deferred([[0, 0, 0], [1, 1, 0], [1, 1, 1]], |run, log| {
            // This thread owns the first lane, and the other thread gets the second, so only the next commit makes the deferred commit durable.
            let mut here = LaneGuard::acquire(log);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut there = LaneGuard::acquire(log);
                    overwrite(run.pmem(), &mut there, 0..2, 1);
                    there.commit_deferred(run.pmem()).unwrap();
                });
            });
            if by_word {
                store_u64(run, log, at(2), 1);
            } else {
                commit_in(&mut here, run, &[(at(2), 1)]);
            }
        });
    }
}

#[test]
fn lane_commits_after_its_own_deferred_commit() {
    explore_deferred([[0, 0, 0], [1, 1, 0], [2, 2, 3]], |run, log| {
        let mut lane = LaneGuard::acquire(log);
        overwrite(run.pmem(), &mut lane, 0..2, 1);
        lane.commit_deferred(run.pmem()).unwrap();
        overwrite(run.pmem(), &mut lane, 0..2, 2);
        commit_in(&mut lane, run, &[(at(2), 3)]);
    });
}

/// The next owner of the lane flushes the deferred commit entry again, so that its own fence covers the entry.
#[test]
fn next_owner_of_lane_commits_after_deferred_commit() {
    explore_deferred([[0, 0, 0], [1, 1, 0], [1, 2, 3]], |run, log| {
        let first = || {
            let mut lane = LaneGuard::acquire(log);
            overwrite(run.pmem(), &mut lane, 0..2, 1);
            lane.commit_deferred(run.pmem()).unwrap();
        };
        let second = || {
            let mut lane = LaneGuard::acquire(log);
            overwrite(run.pmem(), &mut lane, 1..2, 2);
            commit_in(&mut lane, run, &[(at(2), 3)]);
        };
        thread::scope(|scope| scope.spawn(first).join().unwrap());
        thread::scope(|scope| scope.spawn(second).join().unwrap());
    });
}

/// Before the acknowledgement a crash may leave any of the states; after it, only the last one.
fn explore_deferred(states: [[u64; 3]; 3], operation: impl Fn(&Run<()>, &Log) + Sync) {
    let layout = layout(12);
    let allowed = |done: usize| states[if done == 0 { 0 } else { 2 }..].to_vec();
    explore_from(&formatted(&layout), &layout, Sampled, [at(0), at(1), at(2)], allowed, operation);
}
