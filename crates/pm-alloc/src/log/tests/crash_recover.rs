//! Crashes while a log is formatted, during recovery, and in the last generation before the rings are erased, also with corruption.

use super::support::{
    Mixtures, at, commit, exhaustive, explore_from, formatted, image, in_last_generation, layout, load,
    recover, recover_discarding, with_log, words,
};
use crate::format::{BlockHeader, BlockState};
use crate::log::{Inspection, LaneGuard, OnCorruption, RecoverError, Recovery, Writes};
use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Model, Run};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn formatting_removes_older_entries() {
    let layout = layout(8);
    let used = with_log(&layout, |pmem, log| {
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
        pmem.store_u64(at(0), 0);
    });
    let operation = |run: &Run<()>| {
        crate::log::format(run.pmem(), &layout);
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
fn first_generation_follows_the_last() {
    let layout = layout(4);
    let before = in_last_generation(&layout, |pmem, log| {
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 3)])).unwrap();
        // As if the commit had not been applied.
        pmem.store_u64(at(0), 2);
    });
    let allowed = |done: usize| vec![[3], [4]][done..].to_vec();
    explore_from(&before, &layout, Mixtures::All, [at(0)], allowed, |run, log| {
        assert_eq!(log.checkpoint_lsn().generation(), 1);
        commit(run, log, &[(at(0), 4)]);
    });
}

#[test]
fn corrupted_word_is_restored_from_its_copy() {
    let layout = layout(4);
    for offset in [layout.floor_offsets(), layout.retired_offsets(1)].into_iter().flatten() {
        image(|pmem| {
            crate::log::format(pmem, &layout);
            pmem.store_u64(offset, 12345);
            let (_, recovery) = recover(pmem, &layout);
            assert_eq!((recovery.corrupted_words, recovery.corrupted_lanes), (1, vec![]));
            assert_eq!(recover(pmem, &layout).1, Recovery::default());
        });
    }
    image(|pmem| {
        crate::log::format(pmem, &layout);
        layout.retired_offsets(1).iter().for_each(|&offset| pmem.store_u64(offset, 1));
        assert_eq!(recover(pmem, &layout).1.corrupted_lanes, [1]);
        let [floor, copy] = layout.floor_offsets();
        pmem.store_u64(floor, 1);
        pmem.store_u64(copy, 2);
        let error = crate::log::recover(pmem, &layout, OnCorruption::Refuse).unwrap_err();
        assert_eq!(error, RecoverError::Floor { offset: floor, found: 1, copy: 2 });
        assert_eq!(Inspection::of(pmem, &layout).unwrap_err(), error);
    });
}

#[test]
fn corrupted_entry_is_reported() {
    let layout = layout(4);
    for word in 0..8 {
        with_log(&layout, |pmem, log| {
            LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
            let corrupted = layout.entry_offset(0, 0) + 8 * word;
            pmem.store_u64(corrupted, pmem.load_u64(corrupted) ^ 1 << 20);
            assert_eq!(Inspection::of(pmem, &layout).unwrap().lanes[0].corrupted_count, 1);
            let refused = RecoverError::Corrupted { lane: 0, offset: layout.entry_offset(0, 0) };
            assert_eq!(crate::log::recover(pmem, &layout, OnCorruption::Refuse).unwrap_err(), refused);
            let recovery = recover_discarding(pmem, &layout).1;
            assert_eq!((recovery.corrupted_entries, recovery.discarded_in_lanes), (1, vec![0]));
            assert_eq!(recover(pmem, &layout).1.corrupted_entries, 0);
        });
    }
}

#[test]
fn inspection_predicts_recovery() {
    let layout = layout(8);
    with_log(&layout, |pmem, log| {
        let mut lane = LaneGuard::acquire(&log);
        let lsn = lane.commit(pmem, &words(&[(at(0), 1)])).unwrap();
        let other = &mut LaneGuard::acquire(&log);
        other.undo(pmem, at(1), 100).unwrap();
        pmem.store_u64(at(1), 1);
        let seen = Inspection::of(pmem, &layout).unwrap();
        assert_eq!((seen.floor.generation(), seen.floor_corrupted), (1, 0));
        assert_eq!(
            (seen.lanes[0].group_count, seen.lanes[0].last_lsn, seen.lanes[0].is_live),
            (1, Some(lsn), true)
        );
        assert_eq!(
            (seen.lanes[1].group_count, seen.lanes[1].open_undo_count, seen.lanes[1].is_live),
            (0, 3, false)
        );
        let (_, recovery) = recover(pmem, &layout);
        assert_eq!((recovery.replayed, recovery.rolled_back), (1, 1));
        assert_eq!(load(pmem, [at(0), at(1)]), [1, 0]);
        other.roll_back(pmem).unwrap();
    });
}

/// After a kill, contents that the next process can read may not be durable. Recovery makes them durable before it relies on them.
#[test]
fn recovery_relies_only_on_durable_state() {
    let layout = layout(8);
    let unapplied = with_log(&layout, |pmem, log| {
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1), (at(1), 1)])).unwrap();
        // As if the commit had not been applied.
        [at(0), at(1)].iter().for_each(|&offset| pmem.store_u64(offset, 0));
    });
    let first = |run: &Run<u64>| {
        let (log, _) = recover(run.pmem(), &layout);
        LaneGuard::acquire(&log).commit(run.pmem(), &words(&[(at(1), 2), (at(2), 2)])).unwrap();
        run.ack(2);
    };
    let second = |run: &Run<u64>| {
        let (log, _) = recover(run.pmem(), &layout);
        crate::log::store_u64(&log, run.pmem(), at(0), 100).unwrap();
        run.ack(100);
    };
    let check = |crash: &Crash<u64>| {
        let (_, recovery) = recover(crash.pmem(), &layout);
        let [here, there, then] = load(crash.pmem(), [at(0), at(1), at(2)]);
        let is_whole = (there, then) == (2, 2) || (there, then) == (1, 0) && !crash.acked().contains(&2);
        let is_stored = here == 100 || here == 1 && !crash.acked().contains(&100);
        let is_sound = is_whole && is_stored && recovery.corrupted_entries == 0;
        if is_sound { Ok(()) } else { Err(format!("{here}, {there}, {then}: {recovery:?}")) }
    };
    exhaustive(|explorer| explorer.crashes(2).check_restarted(&unapplied, first, second, check));
}

/// A group that was not applied allocates two adjacent blocks, and recovery is crashed at every point. No header is durable before the header that
/// follows its block, so the group's entry may be corrupted at any point.
#[test]
fn inner_header_is_durable_before_front_header() {
    let layout = layout(8);
    let place = |line: u64| at(line) + 56;
    let header = |line: u64, state, lines| BlockHeader::new(state, lines).to_word(layout.seed, place(line));
    let headers = [
        (place(0), header(0, BlockState::Allocated, 2)),
        (place(2), header(2, BlockState::Allocated, 3)),
        (place(5), header(5, BlockState::Free, 4)),
    ];
    let unapplied = with_log(&layout, |pmem, log| {
        let mut writes = Writes::default();
        writes.header(headers[0].0, headers[0].1);
        headers[1..].iter().for_each(|&(offset, word)| writes.early_header(offset, word));
        LaneGuard::acquire(&log).commit(pmem, &writes).unwrap();
        // As if the power had failed before any of these headers was durable.
        headers.iter().for_each(|&(offset, _)| pmem.store_u64(offset, 0));
    });
    let operation = |run: &Run<()>| drop(recover(run.pmem(), &layout));
    let check = |crash: &Crash<()>| {
        let stored = headers.map(|(offset, word)| crash.pmem().load_u64(offset) == word);
        if !stored.is_sorted() {
            return Err(format!("{stored:?}"));
        }
        recover(crash.pmem(), &layout);
        let found = headers.map(|(offset, word)| crash.pmem().load_u64(offset) == word);
        if found == [true; 3] { Ok(()) } else { Err(format!("{found:?}")) }
    };
    exhaustive(|explorer| explorer.check(&unapplied, operation, check));
}

/// After a crash while a log is being closed, recovery finds the log closed or recovers it.
#[test]
fn crash_while_closing_loses_nothing() {
    let layout = layout(8);
    let operation = |run: &Run<()>| {
        let (mut log, _) = recover(run.pmem(), &layout);
        commit(run, &log, &[(at(0), 1), (at(1), 1)]);
        log.close(run.pmem()).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let done = crash.acked().len();
        // A crashed recovery may already have opened the log again.
        if done == 2 && Inspection::of(crash.pmem(), &layout).unwrap().is_closed {
            // Recovery needs no entry of the rings.
            crash.pmem().store_u64(layout.entry_offset(0, 0) + 56, 0);
        }
        let (_, recovery) = recover(crash.pmem(), &layout);
        assert!(done < 2 || recovery.replayed == 0, "{recovery:?}");
        let states: &[[u64; 2]] = if done == 0 { &[[0, 0], [1, 1]] } else { &[[1, 1]] };
        crash.expect(load(crash.pmem(), [at(0), at(1)]), states.iter().copied())
    };
    exhaustive(|explorer| explorer.kills(1).check(&formatted(&layout), operation, check));
}

/// The floor and its copy differ after a crash: the higher value is used, and recovery makes both equal.
#[test]
fn higher_copy_of_floor_is_used() {
    let layout = layout(4);
    for stale in layout.floor_offsets() {
        with_log(&layout, |pmem, mut log| {
            LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), 1)])).unwrap();
            let old = pmem.load_u64(stale);
            log.close(pmem).unwrap();
            pmem.store_u64(stale, old);
            pmem.store_u64(at(0), 2);
            let (_, recovery) = recover(pmem, &layout);
            assert_eq!((recovery.replayed, recovery.corrupted_words), (0, 0));
            // Now either copy may be corrupted.
            for offset in layout.floor_offsets() {
                let kept = pmem.load_u64(offset);
                pmem.store_u64(offset, !kept);
                assert_eq!(recover(pmem, &layout).1.replayed, 0);
                assert_eq!(load(pmem, [at(0)]), [2]);
            }
        });
    }
}

/// A word that a killed process was storing in place is visible before it is durable. No acknowledged change of either process is lost. If the second
/// process first stores the word again, values that it derives from the word agree with the word.
#[test]
fn word_of_killed_process_is_durable_once_stored_again() {
    const STORED: u64 = 1;
    const COPIED: u64 = 2;
    let layout = layout(8);
    for stores_again in [false, true] {
        let first = |run: &Run<u64>| {
            let (log, _) = recover(run.pmem(), &layout);
            crate::log::store_u64(&log, run.pmem(), at(0), 5).unwrap();
            run.ack(STORED);
        };
        let second = |run: &Run<u64>| {
            let (log, _) = recover(run.pmem(), &layout);
            let [found] = load(run.pmem(), [at(0)]);
            if stores_again {
                crate::log::store_u64(&log, run.pmem(), at(0), found).unwrap();
            }
            LaneGuard::acquire(&log).commit(run.pmem(), &words(&[(at(1), found)])).unwrap();
            run.ack(COPIED * found);
        };
        let check = |crash: &Crash<u64>| {
            recover(crash.pmem(), &layout);
            let [word, copy] = load(crash.pmem(), [at(0), at(1)]);
            let is_kept = word == 5 || !crash.acked().contains(&STORED);
            let is_copied = copy == 5 || !crash.acked().contains(&(COPIED * 5));
            let agree = copy == 0 || word == copy || !stores_again;
            if is_kept && is_copied && agree { Ok(()) } else { Err(format!("{word}, {copy}")) }
        };
        let explorer = Explorer::new(Model::Px86Line).crashes(1);
        let coverage = explorer.check_restarted(&formatted(&layout), first, second, check);
        assert!(coverage.is_exhaustive(), "{coverage}");
    }
}

/// The log relies on the order of stores to one line. Without this order a crash cannot be distinguished from corruption, and recovery refuses the
/// log. With it, recovery refuses no log after a crash.
#[test]
fn recovery_refuses_crash_only_without_store_order_in_a_line() {
    let layout = layout(8);
    for model in [Model::Eadr, Model::Px86Line, Model::Page, Model::Px86Loc, Model::Chunk8] {
        let refused = AtomicBool::new(false);
        let operation = |run: &Run<()>| {
            let (log, _) = recover(run.pmem(), &layout);
            LaneGuard::acquire(&log).commit(run.pmem(), &words(&[(at(0), 1)])).unwrap();
        };
        let check = |crash: &Crash<()>| match crate::log::recover(crash.pmem(), &layout, OnCorruption::Refuse)
        {
            Ok(_) => Ok(()),
            Err(RecoverError::Corrupted { .. }) => {
                refused.store(true, Ordering::Relaxed);
                recover_discarding(crash.pmem(), &layout);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        };
        Explorer::new(model).crashes(1).check(&formatted(&layout), operation, check);
        let is_ordered = !matches!(model, Model::Px86Loc | Model::Chunk8);
        assert_eq!(refused.into_inner(), !is_ordered, "{model}");
    }
}
