//! Crashes of commits: in one lane, in two lanes on the same word, in rings that wrap, in lanes that change owners.

use super::support::Mixtures::{All, Sampled};
use super::support::{at, commit, commit_in, explore, layout, load, recover, store_u64, with_log, words};
use crate::log::{CommitError, LaneGuard, Writes};
use std::thread;

#[test]
fn one_range_is_atomic() {
    let mut writes = Writes::default();
    writes.bytes(at(1) - 3, &[0x11; 3 + 16]);
    explore(
        &layout(8),
        All,
        [at(1) - 8, at(1), at(1) + 8],
        &[[0; 3], [0x1111_1100_0000_0000, ONES, ONES]],
        |run, log| {
            LaneGuard::acquire(log).commit(run.pmem(), &writes).unwrap();
            run.ack(());
        },
    );
}

const ONES: u64 = 0x1111_1111_1111_1111;

#[test]
fn three_words_are_atomic() {
    explore(&layout(8), All, [at(0), at(1), at(2)], &[[0; 3], [1, 2, 3]], |run, log| {
        commit(run, log, &[(at(0), 1), (at(1), 2), (at(2), 3)]);
    });
}

#[test]
fn group_of_several_entries_is_atomic() {
    let mut writes = Writes::default();
    writes.bytes(at(0), &[0x11; 80]);
    writes.word(at(4), 4);
    writes.word(at(5), 5);
    let offsets = [at(0), at(0) + 40, at(0) + 48, at(1) + 8, at(4), at(5)];
    explore(&layout(8), Sampled, offsets, &[[0; 6], [ONES, ONES, ONES, ONES, 4, 5]], |run, log| {
        LaneGuard::acquire(log).commit(run.pmem(), &writes).unwrap();
        run.ack(());
    });
}

#[test]
fn lane_commits_the_same_word_again() {
    explore(&layout(8), All, [at(0)], &[[0], [1], [2], [3]], |run, log| {
        (1..=3).for_each(|value| commit(run, log, &[(at(0), value)]));
    });
}

#[test]
fn lane_commits_one_word_after_another() {
    explore(
        &layout(8),
        All,
        [at(0), at(1), at(2)],
        &[[0; 3], [1, 0, 0], [1, 2, 0], [1, 2, 3]],
        |run, log| {
            (0..3).for_each(|line| commit(run, log, &[(at(line), line + 1)]));
        },
    );
}

#[test]
fn two_lanes_commit_the_same_word_in_turn() {
    let states = [[0, 0], [1, 0], [2, 0], [2, 3], [4, 3], [5, 3]];
    explore(&layout(8), All, [at(0), at(1)], &states, |run, log| {
        let (mut here, mut there) = (LaneGuard::acquire(log), LaneGuard::acquire(log));
        commit_in(&mut here, run, &[(at(0), 1)]);
        commit_in(&mut there, run, &[(at(0), 2)]);
        commit_in(&mut there, run, &[(at(1), 3)]);
        commit_in(&mut here, run, &[(at(0), 4)]);
        commit_in(&mut there, run, &[(at(0), 5)]);
    });
}

#[test]
fn two_threads_commit_the_same_word_in_turn() {
    explore(&layout(8), All, [at(0), at(1)], &[[0, 0], [1, 0], [2, 0], [2, 3]], |run, log| {
        // This thread owns the first lane, so the other thread gets the second lane.
        let mut here = LaneGuard::acquire(log);
        commit_in(&mut here, run, &[(at(0), 1)]);
        thread::scope(|scope| {
            scope.spawn(|| {
                commit(run, log, &[(at(0), 2)]);
                commit(run, log, &[(at(1), 3)]);
            });
        });
    });
}

#[test]
fn next_owner_of_lane_flushes_its_last_group() {
    explore(
        &layout(8),
        All,
        [at(0), at(1), at(2)],
        &[[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 3]],
        |run, log| {
            for (line, value) in [(0, 1), (1, 2), (2, 3)] {
                thread::scope(|scope| {
                    scope.spawn(|| commit(run, log, &[(at(line), value)]));
                });
            }
        },
    );
}

#[test]
fn full_ring_retires_idle_lane() {
    let states = [[0, 0, 0], [1, 0, 5], [2, 0, 5], [2, 1, 5], [2, 2, 5], [2, 3, 5], [2, 4, 5], [2, 5, 5]];
    explore(&layout(4), All, [at(0), at(1), at(2)], &states, |run, log| {
        let mut busy = LaneGuard::acquire(log);
        // Runs in another thread, because no fence of this thread covers the flushes of that thread.
        thread::scope(|scope| {
            scope.spawn(|| commit(run, log, &[(at(0), 1), (at(2), 5)]));
        });
        commit_in(&mut busy, run, &[(at(0), 2)]);
        (1..=5).for_each(|value| commit_in(&mut busy, run, &[(at(1), value)]));
    });
}

#[test]
fn groups_of_two_entries_wrap_around_a_tiny_ring() {
    let states: Vec<[u64; 4]> = (0..=4).map(|value| [value; 4]).collect();
    explore(&layout(5), Sampled, [at(0), at(1), at(2), at(3)], &states, |run, log| {
        for value in 1..=4 {
            commit(run, log, &[0, 1, 2, 3].map(|line| (at(line), value)));
        }
    });
}

#[test]
fn replay_does_not_overwrite_word_in_place() {
    let states = [[0, 0], [1, 0], [2, 0], [2, 7], [3, 7]];
    explore(&layout(8), All, [at(0), at(1)], &states, |run, log| {
        commit(run, log, &[(at(0), 1)]);
        // This store goes through a commit, because a live entry stores to the same line.
        store_u64(run, log, at(0), 2);
        store_u64(run, log, at(1), 7);
        let last = log.live_lsn_bound(at(0), 8);
        log.raise_checkpoint(run.pmem(), last).unwrap();
        store_u64(run, log, at(0), 3);
    });
}

#[test]
fn too_large_commit_changes_nothing() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        let mut writes = Writes::default();
        (0..30).for_each(|number| writes.word(at(number), 1));
        let refused = LaneGuard::acquire(&log).commit(pmem, &writes);
        assert_eq!(refused, Err(CommitError::TooLarge { entries: 10, capacity: 4 }));
        assert_eq!(load(pmem, [at(0), at(29)]), [0, 0]);
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
        assert_eq!(load(pmem, [at(0), at(29)]), [1, 0]);
    });
}

#[test]
fn threads_wait_for_lanes_and_retire_them() {
    let layout = layout(4);
    let pmem = std::sync::Arc::new(pm_crashsim::SimPmem::new(1 << 15));
    crate::log::format(&*pmem, &layout);
    let (log, _) = recover(&*pmem, &layout);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (log, pmem) = (&log, &pmem);
            scope.spawn(move || {
                for value in 1..=50 {
                    LaneGuard::acquire(log).commit(&**pmem, &words(&[(at(thread), value)])).unwrap();
                }
            });
        }
    });
    assert_eq!(load(&*pmem, [0, 1, 2, 3].map(at)), [50; 4]);
    drop(log);
    recover(&*pmem, &layout);
    assert_eq!(load(&*pmem, [0, 1, 2, 3].map(at)), [50; 4]);
}
