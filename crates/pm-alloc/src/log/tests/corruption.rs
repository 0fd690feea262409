//! Corrupted lines of a log that was not closed: recovery refuses the log if a corrupted line may have held a live entry.

use super::support::{at, layout, load, recover, recover_discarding, with_log, words};
use crate::log::floor;
use crate::log::rings::ScannedLane;
use crate::log::{Inspection, LaneGuard, Log, OnCorruption, RecoverError};
use pm_core::Pmem;
use pm_crashsim::SimPmem;

#[test]
fn lane_with_groups_and_unknown_retired_lsn_is_refused() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
        log.raise_checkpoint(pmem, log.latest()).unwrap();
        crate::log::store_u64(&log, pmem, at(0), 2).unwrap();
        layout.retired_offsets(0).iter().for_each(|&offset| pmem.store_u64(offset, 1));
        let refused = RecoverError::Corrupted { lane: 0, offset: layout.retired_offsets(0)[0] };
        assert_eq!(crate::log::recover(pmem, &layout, OnCorruption::Refuse).unwrap_err(), refused);
        assert!(Inspection::of(pmem, &layout).unwrap().lanes[0].is_corruption_live);
        assert_eq!(load(pmem, [at(0)]), [2]);
    });
}

/// Corrupts each entry of a lane's second-to-last group, which has several entries. Without the check, recovery would skip the group.
#[test]
fn corrupted_entry_of_live_group_is_refused() {
    let layout = layout(20);
    for entry in 0..3 {
        with_log(&layout, |pmem, log| {
            let pairs: Vec<(u64, u64)> = (0..7).map(|line| (at(line), 1)).collect();
            let mut lane = LaneGuard::acquire(&log);
            lane.commit(pmem, &words(&pairs)).unwrap();
            lane.commit(pmem, &words(&[(at(7), 1)])).unwrap();
            let corrupted = layout.entry_offset(0, entry);
            pmem.store(corrupted, &[0; 64]);
            let refused = RecoverError::Corrupted { lane: 0, offset: corrupted };
            assert_eq!(crate::log::recover(pmem, &layout, OnCorruption::Refuse).unwrap_err(), refused);
        });
    }
}

/// Runs `make`, corrupts the line at the returned offset, and recovers as after a kill.
fn assert_opens(make: impl Fn(&SimPmem, &Log) -> u64) {
    let layout = layout(20);
    with_log(&layout, |pmem, log| {
        let corrupted = make(pmem, &log);
        let expected = load(pmem, [at(0), at(1)]);
        pmem.store(corrupted, &[0xA5; 64]);
        let (_, recovery) = recover(pmem, &layout);
        assert_eq!((recovery.corrupted_entries, recovery.rolled_back), (1, 0));
        assert_eq!(load(pmem, [at(0), at(1)]), expected);
    });
}

/// Corrupts each undo entry of a committed long write: between two entries of one call, between entries of two calls, and at either end.
#[test]
fn corrupted_undo_entry_of_committed_long_write_is_dead() {
    for entry in 0..5 {
        for is_first in [true, false] {
            assert_opens(|pmem, log| {
                let mut lane = LaneGuard::acquire(log);
                if !is_first {
                    lane.commit(pmem, &words(&[(at(9), 1)])).unwrap();
                }
                for (offset, len) in [(at(0), 144), (at(4), 96)] {
                    lane.undo(pmem, offset, len).unwrap();
                    pmem.store(offset, &vec![1; usize::try_from(len).unwrap()]);
                }
                lane.commit(pmem, &words(&[(at(8), 1)])).unwrap();
                log.layout.entry_offset(0, entry + u32::from(!is_first))
            });
        }
    }
}

/// A corrupted line between two undo entries may have held a live group, and is not taken for an undo entry.
#[test]
fn corrupted_group_between_long_writes_is_refused() {
    let layout = layout(20);
    with_log(&layout, |pmem, log| {
        let mut lane = LaneGuard::acquire(&log);
        for value in 1..3 {
            lane.undo(pmem, at(0), 8).unwrap();
            pmem.store_u64(at(0), value);
            lane.commit(pmem, &words(&[(at(1), value)])).unwrap();
        }
        for entry in [1, 3] {
            let offset = layout.entry_offset(0, entry);
            let kept = pmem.load_u64(offset);
            pmem.store_u64(offset, !kept);
            let refused = RecoverError::Corrupted { lane: 0, offset };
            assert_eq!(crate::log::recover(pmem, &layout, OnCorruption::Refuse).unwrap_err(), refused);
            pmem.store_u64(offset, kept);
        }
    });
}

#[test]
fn corrupted_retired_group_is_dead() {
    for later in 1..4 {
        assert_opens(|pmem, log| {
            let mut lane = LaneGuard::acquire(log);
            lane.commit(pmem, &words(&[(at(0), 1)])).unwrap();
            log.raise_checkpoint(pmem, log.latest()).unwrap();
            (0..later).for_each(|value| drop(lane.commit(pmem, &words(&[(at(1), value)]))));
            log.layout.entry_offset(0, 0)
        });
    }
}

/// Corrupts each entry of the lane's last group, up to which the lane is retired.
#[test]
fn corrupted_entry_of_longer_retired_group_is_dead() {
    for entry in 0..3 {
        assert_opens(|pmem, log| {
            let pairs: Vec<(u64, u64)> = (0..7).map(|line| (at(line), 1)).collect();
            LaneGuard::acquire(log).commit(pmem, &words(&pairs)).unwrap();
            log.raise_checkpoint(pmem, log.latest()).unwrap();
            log.layout.entry_offset(0, entry)
        });
    }
}

#[test]
fn corruption_of_bypassed_log_is_dead() {
    for commits in 0..3 {
        for entry in 0..4 {
            let layout = layout(20);
            with_log(&layout, |pmem, mut log| {
                (1..=commits)
                    .for_each(|value| drop(LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), value)]))));
                log.bypass(pmem);
                pmem.store(layout.entry_offset(0, entry), &[0xA5; 64]);
                let (_, recovery) = recover(pmem, &layout);
                assert_eq!((recovery.corrupted_entries, recovery.replayed), (1, 0));
                assert_eq!(load(pmem, [at(0)]), [commits]);
            });
        }
    }
}

/// The LSN of a corrupted line is known to lie between those of its neighbours. So dead groups of other lanes with lower LSNs are not replayed.
#[test]
fn corrupted_line_causes_no_replay_of_dead_groups() {
    let layout = layout(20);
    for entry in 0..3 {
        with_log(&layout, |pmem, log| {
            let (mut here, mut there) = (LaneGuard::acquire(&log), LaneGuard::acquire(&log));
            here.commit(pmem, &words(&[(at(1), 1)])).unwrap();
            there.commit(pmem, &words(&[(at(0), 1)])).unwrap();
            (0..3).for_each(|value| drop(there.commit(pmem, &words(&[(at(2), value)]))));
            (0..2).for_each(|value| drop(here.commit(pmem, &words(&[(at(1), value)]))));
            crate::log::store_u64(&log, pmem, at(0), 2).unwrap();
            pmem.store(layout.entry_offset(0, entry), &[0xA5; 64]);
            recover_discarding(pmem, &layout);
            assert_eq!(load(pmem, [at(0)]), [2], "entry {entry}");
        });
    }
}

/// While an idle lane bounds the checkpoint LSN, the ring of another lane wraps. The oldest entry of that ring is dead: no entry above it is missing,
/// and every live entry is above it.
#[test]
fn oldest_entry_of_ring_is_dead() {
    let (pmem, layout) = (SimPmem::new(1 << 15), layout(8));
    crate::log::format(&pmem, &layout);
    let (log, _) = recover(&pmem, &layout);
    let floor = floor::read(&pmem, &layout).unwrap().0;
    let [mut idle, mut busy] = [LaneGuard::acquire(&log), LaneGuard::acquire(&log)];
    let mut wrapped_rounds = 0;
    for round in 0..40 {
        if round % 10 == 0 {
            idle.commit(&pmem, &words(&[(at(0), round)])).unwrap();
        }
        busy.commit(&pmem, &words(&[(at(1), round), (at(2), round), (at(3), round), (at(4), round)]))
            .unwrap();
        if let Some(oldest) = ScannedLane::read(&pmem, &layout, 1, floor).oldest {
            assert!(log.has_checkpoint_reached(oldest), "round {round}: {oldest:?}");
            wrapped_rounds += 1;
        }
    }
    assert!(wrapped_rounds > 30);
}
