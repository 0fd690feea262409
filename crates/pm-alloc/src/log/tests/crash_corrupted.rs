//! A crash, followed by the corruption of a line in a lane: recovery that discards the line loses at most the transaction of that line.

use super::support::{at, commit, commit_in, formatted, lanes, load, recover, store_u64};
use crate::format::LINE_BYTES;
use crate::layout::Layout;
use crate::log::{LaneGuard, Log, OnCorruption};
use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Model, Run};
use std::thread;

/// Crashes and kills `operation` on a new log at every point. Then corrupts each line of `lane` in turn, and recovers without that line: line 0 and
/// the last line hold the words of the lane's header, the other lines its entries. The recovery after a kill is also crashed, corrupted and repeated.
/// `is_allowed` gets the number of acknowledged steps, the number of the line, and the contents of `offsets`.
fn explore<const N: usize>(
    layout: &Layout,
    lane: u32,
    offsets: [u64; N],
    operation: impl Fn(&Run<()>, &Log) + Sync,
    is_allowed: impl Fn(usize, u64, [u64; N]) -> bool + Sync,
) {
    let operation = |run: &Run<()>| {
        operation(run, &recover(run.pmem(), layout).0);
    };
    for line in 0..Layout::lane_bytes(layout.lane_entries) / LINE_BYTES {
        let check = |crash: &Crash<()>| {
            crash.pmem().store(layout.lane_offset(lane) + LINE_BYTES * line, &[0xA5; 64]);
            crate::log::recover(crash.pmem(), layout, OnCorruption::Discard)
                .map_err(|error| error.to_string())?;
            let (done, found) = (crash.acked().len(), load(crash.pmem(), offsets));
            if is_allowed(done, line, found) {
                Ok(())
            } else {
                Err(format!("line {line} corrupted after {done} steps: {found:?}"))
            }
        };
        // After kills, the next process also has stores in flight at each point.
        let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1);
        let explorer = explorer.choices_per_point(1 << 16).nested_choices_per_point(1 << 16);
        let coverage = explorer.check(&formatted(layout), operation, check);
        assert!(coverage.is_exhaustive(), "{coverage}");
    }
}

/// Writes 1 in place and defers the commit. Returns the lane, which this thread still owns.
fn deferred<'l>(run: &Run<()>, log: &'l Log) -> LaneGuard<'l> {
    let mut lane = LaneGuard::acquire(log);
    lane.undo(run.pmem(), at(0), 8).unwrap();
    run.pmem().store_u64(at(0), 1);
    lane.commit_deferred(run.pmem()).unwrap();
    lane
}

/// The undo entries of a long write are dead when its commit returns, even if its commit entry is corrupted later.
#[test]
fn undo_entries_of_long_write_with_redo_entries_stay_dead() {
    for is_in_place in [true, false] {
        explore(
            &lanes(2, 8),
            0,
            [at(0)],
            |run, log| {
                let mut lane = LaneGuard::acquire(log);
                lane.undo(run.pmem(), at(0), 8).unwrap();
                run.pmem().store_u64(at(0), 1);
                commit_in(&mut lane, run, &[(at(1), 1)]);
                // This commits in the other lane, or stores in place.
                thread::scope(|scope| {
                    scope.spawn(|| {
                        if is_in_place {
                            store_u64(run, log, at(0), 2);
                        } else {
                            commit(run, log, &[(at(0), 2)]);
                        }
                    });
                });
            },
            |done, _, found| done < 2 || found == [2],
        );
    }
}

/// A commit makes the deferred commits of other lanes durable, including the words in the lanes' headers that make undo entries dead.
#[test]
fn undo_entries_of_deferred_commit_are_dead_after_next_commit() {
    explore(
        &lanes(2, 8),
        1,
        [at(0)],
        |run, log| {
            let mut here = LaneGuard::acquire(log);
            thread::scope(|scope| {
                scope.spawn(|| drop(deferred(run, log)));
            });
            commit_in(&mut here, run, &[(at(0), 2)]);
        },
        |done, _, found| done < 1 || found == [2],
    );
}

/// The last two groups of a lane are replayed, even if a line without an entry is corrupted.
#[test]
fn corrupted_unused_line_loses_no_acknowledged_transaction() {
    explore(
        &lanes(1, 8),
        0,
        [at(0), at(1)],
        |run, log| {
            (0..2).for_each(|line| commit(run, log, &[(at(line), 1)]));
        },
        |done, line, found| {
            (1..3).contains(&line) || done == 0 || found == [1, 1] || done == 1 && found == [1, 0]
        },
    );
}

/// A lane is retired while its owning thread's last commit is deferred. The words of the lane's header make that commit durable, and either copy of
/// them is sufficient.
#[test]
fn retiring_lane_makes_its_deferred_commit_durable() {
    explore(
        &lanes(2, 8),
        0,
        [at(0)],
        |run, log| {
            let _lane = deferred(run, log);
            thread::scope(|scope| {
                scope.spawn(|| {
                    log.raise_checkpoint(run.pmem(), log.latest()).unwrap();
                    // No entry is live, so this store needs no log.
                    run.pmem().store_u64(at(0), 2);
                    run.pmem().flush(at(0), 8);
                    run.pmem().fence().unwrap();
                    run.ack(());
                });
            });
        },
        |done, _, found| done < 1 || found == [2],
    );
}
