//! Invariants I4 and I6 of the checkpoint LSN, with two threads on one log, in every schedule, or in every schedule with at most a few preemptions.
//! Each schedule is crashed at every point. Runs only with `--cfg loom`: `cargo xtask test loom`.

use super::support::{at, formatted, lanes, recover, words};
use crate::format::Lsn;
use crate::layout::Layout;
use crate::log::floor;
use crate::log::rings::ScannedLane;
use crate::log::{LaneGuard, Log, OnCorruption, Replayed};
use loom::model::Builder;
use loom::thread;
use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Model, Run};
use std::sync::Arc;

/// A fact that a thread acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Done {
    /// This word has this value, or a higher one.
    Committed(u64, u64),
    /// The checkpoint LSN was this value.
    Checkpoint(Lsn),
}

type Part = fn(&Run<Done>, &Log);

fn commit(run: &Run<Done>, log: &Log, line: u64, value: u64) {
    LaneGuard::acquire(&log).commit(run.pmem(), &words(&[(at(line), value)])).unwrap();
    run.ack(Done::Committed(at(line), value));
}

/// Runs `first`, and then `here` and `there` in two threads.
fn explore(layout: Layout, preemptions: Option<usize>, first: Part, here: Part, there: Part) {
    let operation = move |run: &Arc<Run<Done>>| {
        let log = Arc::new(recover(run.pmem(), &layout).0);
        first(run, &log);
        let other = (Arc::clone(run), Arc::clone(&log));
        let thread = thread::spawn(move || there(&other.0, &other.1));
        here(run, &log);
        thread.join().expect("no thread panics");
    };
    let check = |crash: &Crash<'_, Done>| {
        let (floor, _) = floor::read(crash.pmem(), &layout).unwrap();
        let lanes = (0..layout.lane_count).map(|lane| ScannedLane::read(crash.pmem(), &layout, lane, floor));
        let lowest = lanes.filter_map(|lane| lane.replay_from()).min();
        // Runs only the first half of recovery: the second half makes a log with loom atomics, which work only in a model.
        Replayed::replay(crash.pmem(), &layout, OnCorruption::Refuse).unwrap();
        for done in crash.acked() {
            match *done {
                Done::Committed(offset, value) => assert!(crash.pmem().load_u64(offset) >= value, "{done:?}"),
                Done::Checkpoint(checkpoint_lsn) => {
                    assert!(lowest.is_none_or(|lowest| lowest > checkpoint_lsn), "{done:?}, but {lowest:?}");
                }
            }
        }
    };
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 100_000;
    let explorer = Explorer::new(Model::Px86Line).crashes(1);
    let explored =
        pm_crashsim::under_loom::explore(&explorer, &builder, formatted(&layout), operation, check);
    let coverage = explored.expect("recovery succeeds after every crash of every schedule");
    assert!(coverage.schedules > 20 && coverage.crashes.is_exhaustive(), "{coverage}");
}

#[test]
fn loom_checkpoint_is_below_replayed_groups() {
    let first: Part = |run, log| commit(run, log, 0, 1);
    explore(
        lanes(2, 4),
        Some(4),
        first,
        |run, log| commit(run, log, 1, 1),
        |run, log| (0..2).for_each(|_| run.ack(Done::Checkpoint(log.checkpoint_lsn()))),
    );
}

#[test]
fn loom_lane_is_retired_during_commit() {
    explore(
        lanes(2, 4),
        Some(3),
        |run, log| commit(run, log, 0, 1),
        |run, log| commit(run, log, 0, 2),
        |run, log| {
            let to = log.latest();
            log.raise_checkpoint(run.pmem(), to).unwrap();
            assert!(log.checkpoint_lsn() >= to);
            run.ack(Done::Checkpoint(log.checkpoint_lsn()));
        },
    );
}

#[test]
fn loom_lane_changes_threads() {
    explore(
        lanes(1, 4),
        None,
        |_, _| (),
        |run, log| commit(run, log, 0, 1),
        |run, log| commit(run, log, 1, 1),
    );
}

/// Two lines that share a slot of the table of recent lines, while no lock orders the writes to them.
#[test]
fn loom_lines_share_a_slot() {
    explore(
        lanes(2, 8),
        Some(3),
        |_, _| (),
        |run, log| commit(run, log, 0, 1),
        |run, log| {
            let mut lane = LaneGuard::acquire(&log);
            lane.undo(run.pmem(), at(5), 8).unwrap();
            lane.roll_back(run.pmem()).unwrap();
        },
    );
}
