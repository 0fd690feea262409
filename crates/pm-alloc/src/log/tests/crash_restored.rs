//! Corrupted lines that a killed process has rewritten: the next process makes the new contents durable, so no power failure restores the corruption.

use super::support::{
    at, exhaustive, formatted, in_last_generation, layout, load, recover, recover_discarding, with_log, words,
};
use crate::layout::Layout;
use crate::log::{LaneGuard, OnCorruption, RecoverError};
use pm_core::Pmem;
use pm_crashsim::{Crash, Image, Run};
use std::thread;

/// Kills `first` at every point. Then another process recovers the log and commits, and is crashed at every point. Its commits survive, and once it
/// has committed, a later recovery finds no corruption.
fn explore(layout: &Layout, before: &Image, first: impl Fn(&Run<u64>)) {
    let second = |run: &Run<u64>| {
        let (log, _) = recover_discarding(run.pmem(), layout);
        let lanes = &mut [LaneGuard::acquire(&log), LaneGuard::acquire(&log)];
        for lane in lanes {
            lane.commit(run.pmem(), &words(&[(at(0), 2)])).unwrap();
        }
        run.ack(2);
    };
    let check = |crash: &Crash<u64>| {
        let is_open = crash.acked().contains(&2);
        let on_corruption = if is_open { OnCorruption::Refuse } else { OnCorruption::Discard };
        let (_, recovery) =
            crate::log::recover(crash.pmem(), layout, on_corruption).map_err(|error| error.to_string())?;
        let found = load(crash.pmem(), [at(0)]);
        if is_open && (found != [2] || recovery.corrupted_entries + recovery.corrupted_words > 0) {
            return Err(format!("{found:?}: {recovery:?}"));
        }
        Ok(())
    };
    exhaustive(|explorer| explorer.crashes(2).check_restarted(before, &first, second, check));
}

fn corrupt(pmem: &impl Pmem, offset: u64) {
    pmem.store_u64(offset, 0xA5A5);
}

#[test]
fn line_erased_by_killed_recovery_stays_erased() {
    let layout = layout(4);
    for (entry, is_closed) in [(0, false), (0, true), (2, false), (2, true)] {
        let before = with_log(&layout, |pmem, mut log| {
            LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
            if is_closed {
                log.close(pmem).unwrap();
            }
            corrupt(pmem, layout.entry_offset(0, entry));
        });
        explore(&layout, &before, |run| drop(recover_discarding(run.pmem(), &layout)));
    }
}

/// As the previous test, but in the last generation, after which the rings are erased and the first generation follows.
#[test]
fn line_erased_in_last_generation_stays_erased() {
    let layout = layout(4);
    let before = in_last_generation(&layout, |pmem, log| {
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
        corrupt(pmem, layout.entry_offset(0, 2));
    });
    explore(&layout, &before, |run| {
        let (log, _) = recover_discarding(run.pmem(), &layout);
        assert_eq!(log.checkpoint_lsn().generation(), 1);
    });
}

#[test]
fn words_rewritten_by_killed_recovery_stay_valid() {
    let layout = layout(4);
    let before = with_log(&layout, |pmem, log| {
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
        layout.retired_offsets(0).iter().for_each(|&offset| corrupt(pmem, offset));
        assert!(matches!(
            crate::log::recover(pmem, &layout, OnCorruption::Refuse),
            Err(RecoverError::Corrupted { lane: 0, .. })
        ));
    });
    explore(&layout, &before, |run| drop(recover_discarding(run.pmem(), &layout)));
}

/// The killed process stored the first entry of a group of two over the corrupted line. Recovery makes the line durable, though it does not need it.
#[test]
fn line_overwritten_by_killed_commit_stays_valid() {
    let layout = layout(4);
    explore(&layout, &formatted(&layout), |run| {
        let (log, _) = recover(run.pmem(), &layout);
        let mut lane = LaneGuard::acquire(&log);
        lane.commit(run.pmem(), &words(&[(at(0), 1)])).unwrap();
        corrupt(run.pmem(), layout.entry_offset(0, 1));
        lane.commit(run.pmem(), &words(&[(at(0), 3), (at(1), 3), (at(2), 3), (at(3), 3)])).unwrap();
    });
}

/// The rewritten line holds the deferred commit of a thread that has ended. No fence of that thread covers it.
#[test]
fn closing_makes_deferred_commit_durable() {
    let layout = layout(4);
    explore(&layout, &formatted(&layout), |run| {
        let (mut log, _) = recover(run.pmem(), &layout);
        (0..2).for_each(|lane| corrupt(run.pmem(), layout.entry_offset(lane, 1)));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut lane = LaneGuard::acquire(&log);
                lane.undo(run.pmem(), at(0), 8).unwrap();
                run.pmem().store_u64(at(0), 1);
                lane.commit_deferred(run.pmem()).unwrap();
            });
        });
        log.close(run.pmem()).unwrap();
    });
}
