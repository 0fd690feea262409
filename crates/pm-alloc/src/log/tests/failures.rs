//! Failing fences, abandoned transactions, and exhausted LSNs.

use super::support::{at, image, layout, load, recover, with_log, words};
use crate::format::Lsn;
use crate::log::{CommitError, LaneGuard, Log, Writes};
use core::cell::Cell;
use pm_core::{FenceError, Pmem};
use pm_crashsim::SimPmem;
use pm_testkit::{Hook, Hooked};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A region in which `left` more fences succeed. Later fences panic if `panics` is set, and fail otherwise.
struct Failing {
    left: Cell<u32>,
    panics: bool,
}

impl Hook<&SimPmem> for Failing {
    fn fence(&self, _: &&SimPmem) -> Result<(), FenceError> {
        assert!(!self.panics || self.left.get() > 0, "the region has a bug");
        self.left.set(self.left.get().checked_sub(1).ok_or(FenceError::Poisoned)?);
        Ok(())
    }
}

fn failing(region: &SimPmem, left: u32, panics: bool) -> Hooked<&SimPmem, Failing> {
    Hooked { region, hook: Failing { left: Cell::new(left), panics } }
}

#[test]
fn failed_fence_poisons_log() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        let failing = failing(pmem, 1, false);
        LaneGuard::acquire(&log).commit(&failing, &words(&[(at(0), 1)])).unwrap();
        let failed = Err(CommitError::Fence(FenceError::Poisoned));
        assert_eq!(LaneGuard::acquire(&log).commit(&failing, &words(&[(at(0), 2)])), failed);
        assert_eq!(load(pmem, [at(0)]), [1], "it is not applied");
        // The log stays poisoned although the fences of this region succeed.
        assert_eq!(LaneGuard::acquire(&log).commit(pmem, &words(&[(at(1), 3)])), failed);
        assert_eq!(LaneGuard::acquire(&log).undo(pmem, at(1), 8).map(|()| Lsn::ZERO), failed);
        assert_eq!(crate::log::store_u64(&log, pmem, at(1), 3).map(|()| Lsn::ZERO), failed);
        assert_eq!(crate::log::store_u64_pair(&log, pmem, at(1), [3, 4]).map(|()| Lsn::ZERO), failed);
        assert_eq!(
            log.raise_checkpoint(pmem, log.latest()).map(|()| Lsn::ZERO),
            failed,
            "and it does not wait"
        );
        assert_eq!(load(pmem, [at(1)]), [0]);
    });
}

/// The interrupted commit may become durable although it was not applied. It never ends, so other calls must not wait for it.
#[test]
fn panic_inside_commit_poisons_log() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        let failing = failing(pmem, 0, true);
        let commit = || LaneGuard::acquire(&log).commit(&failing, &words(&[(at(0), 1)]));
        assert!(catch_unwind(AssertUnwindSafe(commit)).is_err());
        let abandoned = Err(CommitError::Abandoned);
        assert_eq!(
            log.raise_checkpoint(pmem, log.latest()).map(|()| Lsn::ZERO),
            abandoned,
            "it does not wait"
        );
        assert_eq!(LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 2)])), abandoned);
        assert_eq!(load(pmem, [at(0)]), [0]);
    });
}

/// The group of the commit, which follows the undo entries in the ring, may be durable.
#[test]
fn failed_commit_is_not_rolled_back() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        let failing = failing(pmem, 2, false);
        let mut lane = LaneGuard::acquire(&log);
        lane.undo(&failing, at(0), 8).unwrap();
        pmem.store_u64(at(0), 1);
        let failed = Err(CommitError::Fence(FenceError::Poisoned));
        assert_eq!(lane.commit(&failing, &words(&[(at(1), 1)])), failed);
        assert_eq!(lane.roll_back(pmem).map(|()| Lsn::ZERO), failed);
        assert_eq!(load(pmem, [at(0), at(1)]), [1, 0], "recovery decides");
        drop(lane);
        let (_, recovery) = recover(pmem, &layout);
        assert_eq!((recovery.replayed, recovery.rolled_back), (1, 0));
        assert_eq!(load(pmem, [at(0), at(1)]), [1, 1]);
    });
}

#[test]
fn abandoned_transaction_poisons_log_until_recovery() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        let mut lane = LaneGuard::acquire(&log);
        lane.undo(pmem, at(0), 8).unwrap();
        pmem.store_u64(at(0), 1);
        drop(lane);
        assert_eq!(LaneGuard::acquire(&log).commit(pmem, &words(&[(at(1), 1)])), Err(CommitError::Abandoned));
        let (log, recovery) = recover(pmem, &layout);
        assert_eq!(recovery.rolled_back, 1);
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(1), 2)])).unwrap();
        assert_eq!(load(pmem, [at(0), at(1)]), [0, 2]);
    });
}

#[test]
fn commit_fails_after_last_lsn() {
    let layout = layout(8);
    image(|pmem| {
        let floor = Lsn::new(Lsn::MAX.bits() - 1);
        let log = Log::new(layout, floor, [Lsn::ZERO; 2].into_iter());
        let mut lane = LaneGuard::acquire(&log);
        assert_eq!(lane.commit(pmem, &words(&[(at(0), 1)])), Ok(Lsn::MAX));
        for _ in 0..3 {
            assert_eq!(lane.commit(pmem, &words(&[(at(0), 2)])), Err(CommitError::LsnsExhausted));
        }
        assert_eq!(log.checkpoint_lsn(), floor);
        log.raise_checkpoint(pmem, Lsn::MAX).unwrap();
        assert_eq!(load(pmem, [at(0)]), [1]);
    });
}

#[test]
fn undo_fails_without_room_for_its_commit() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        let mut lane = LaneGuard::acquire(&log);
        lane.undo(pmem, at(0), 144).unwrap();
        let refused = CommitError::TooLarge { entries: 5, capacity: 4 };
        assert_eq!(lane.undo(pmem, at(4), 8), Err(refused));
        pmem.store_u64(at(0), 1);
        lane.roll_back(pmem).unwrap();
        assert_eq!(load(pmem, [at(0)]), [0]);
        lane.commit(pmem, &Writes::default()).unwrap();
    });
}

#[test]
#[should_panic(expected = "are outside the region, or in the log")]
fn commit_into_the_log_panics() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        drop(LaneGuard::acquire(&log).commit(pmem, &words(&[(layout.lane_offset(1), 1)])));
    });
}
