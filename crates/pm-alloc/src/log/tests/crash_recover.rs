//! Crashes of making a log, of recoveries, and of the end of the generations; and damage.

use super::support::{Mixtures, at, explore_from, image, layout, load, recover, words};
use crate::format::Stamp;
use crate::log::{Log, RecoverError, Recovery};
use crate::sealed;
use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Run};

#[test]
fn a_new_log_knows_nothing_of_an_older_one() {
    let layout = layout(8);
    let used = image(|pmem| {
        Log::format(pmem, &layout);
        let (log, _) = recover(pmem, &layout);
        log.lane().commit(pmem, &words(&[(at(0), 1)])).unwrap();
        pmem.store_u64(at(0), 0);
    });
    let operation = |run: &Run<()>| {
        Log::format(run.pmem(), &layout);
        run.pmem().fence().unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        if crash.acked().is_empty() {
            return Ok(());
        }
        assert_eq!(recover(crash.pmem(), &layout).1, Recovery::default());
        crash.expect(load(crash.pmem(), [at(0)]), [[0]])
    };
    assert!(Explorer::default().check(&used, operation, check).is_exhaustive());
}

#[test]
fn the_last_generation_is_followed_by_the_first() {
    let layout = layout(4);
    let before = image(|pmem| {
        Log::format(pmem, &layout);
        sealed::write(pmem, layout.seed, layout.floor_offset(), Stamp::new(((1 << 15) - 1) << 32));
        let (log, _) = recover(pmem, &layout);
        log.lane().commit(pmem, &words(&[(at(0), 3)])).unwrap();
        // As if the commit had not come to storing in place.
        pmem.store_u64(at(0), 2);
    });
    let allowed = |done: usize| vec![[3], [4]][done..].to_vec();
    explore_from(&before, &layout, Mixtures::All, [at(0)], allowed, |run, log| {
        assert_eq!(log.horizon().generation(), 1);
        log.lane().commit(run.pmem(), &words(&[(at(0), 4)])).unwrap();
        run.ack(());
    });
}

#[test]
fn a_damaged_word_is_read_from_its_copy_and_written_anew() {
    let layout = layout(4);
    for offset in
        [layout.floor_offset(), layout.floor_offset() + 64, layout.lane_offset(1), layout.lane_offset(1) + 64]
    {
        image(|pmem| {
            Log::format(pmem, &layout);
            pmem.store_u64(offset, 12345);
            let (_, recovery) = recover(pmem, &layout);
            assert_eq!((recovery.damaged_words, recovery.damaged_lanes), (1, vec![]));
            assert_eq!(recover(pmem, &layout).1, Recovery::default());
        });
    }
    image(|pmem| {
        Log::format(pmem, &layout);
        pmem.store_u64(layout.lane_offset(1), 1);
        pmem.store_u64(layout.lane_offset(1) + 64, 1);
        assert_eq!(recover(pmem, &layout).1.damaged_lanes, [1]);
        pmem.store_u64(layout.floor_offset(), 1);
        pmem.store_u64(layout.floor_offset() + 64, 2);
        let error = Log::recover(pmem, &layout).unwrap_err();
        assert_eq!(error, RecoverError::Floor { offset: layout.floor_offset(), found: 1, copy: 2 });
        assert_eq!(Log::inspect(pmem, &layout).unwrap_err(), error);
    });
}

#[test]
fn a_damaged_entry_is_reported() {
    let layout = layout(4);
    for word in 0..8 {
        image(|pmem| {
            Log::format(pmem, &layout);
            let (log, _) = recover(pmem, &layout);
            log.lane().commit(pmem, &words(&[(at(0), 1)])).unwrap();
            let damaged = layout.entry_offset(0, 0) + 8 * word;
            pmem.store_u64(damaged, pmem.load_u64(damaged) ^ 1 << 20);
            assert_eq!(Log::inspect(pmem, &layout).unwrap().lanes[0].damaged, 1);
            assert_eq!(recover(pmem, &layout).1.damaged_entries, 1);
            assert_eq!(recover(pmem, &layout).1.damaged_entries, 0);
        });
    }
}

#[test]
fn inspection_shows_what_recovery_will_do() {
    let layout = layout(8);
    image(|pmem| {
        Log::format(pmem, &layout);
        let (log, _) = recover(pmem, &layout);
        let mut lane = log.lane();
        let stamp = lane.commit(pmem, &words(&[(at(0), 1)])).unwrap();
        let other = &mut log.lane();
        other.undo(pmem, at(1), 100).unwrap();
        pmem.store_u64(at(1), 1);
        let seen = Log::inspect(pmem, &layout).unwrap();
        assert_eq!((seen.floor.generation(), seen.floor_damaged), (1, 0));
        assert_eq!((seen.lanes[0].groups, seen.lanes[0].last, seen.lanes[0].is_live), (1, Some(stamp), true));
        assert_eq!((seen.lanes[1].groups, seen.lanes[1].open_undo, seen.lanes[1].is_live), (0, 3, false));
        let (_, recovery) = recover(pmem, &layout);
        assert_eq!((recovery.stored_again, recovery.rolled_back), (1, 1));
        assert_eq!(load(pmem, [at(0), at(1)]), [1, 0]);
        other.roll_back(pmem).unwrap();
    });
}
