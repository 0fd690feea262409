//! What is left of a failure when all that does not matter to it is taken away.

use crate::programs::*;
use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Failure, Model, PendingStore, Run};

fn lines(stores: &[PendingStore]) -> Vec<u64> {
    stores.iter().map(|store| store.line_offset).collect()
}

fn essential(failure: &Failure, crash: usize) -> Vec<u64> {
    let kept = failure.crashes[crash].kept.iter();
    kept.take_while(|store| store.is_essential).map(|store| store.line_offset).collect()
}

#[test]
fn one_forgotten_flush_among_many_is_all_that_is_lost() {
    for model in [Model::Px86Line, Model::Px86Loc, Model::Chunk8] {
        let failure = Explorer::new(model).explore(&region(), one_forgotten, all_there).unwrap_err();
        let crash = &failure.crashes[0];
        assert!(crash.is_minimal);
        assert_eq!(lines(&crash.lost), [SLOT + 64 * FORGOTTEN], "{model}: {failure}");
        assert_eq!(essential(&failure, 0), [0; 0], "{model}: {failure}");
        assert_eq!(failure.message, "19 lines of 20");
    }
}

#[test]
fn what_was_kept_too_early_is_told_from_what_was_merely_kept() {
    let operation = |run: &Run<()>| {
        for line in 0..6 {
            run.pmem().store_u64(4096 + 64 * line, 1);
        }
        unflushed(run)
    };
    let failure = Explorer::default().explore(&region(), operation, published).unwrap_err();
    let crash = &failure.crashes[0];
    assert_eq!(lines(&crash.lost), [SLOT], "{failure}");
    assert_eq!((essential(&failure, 0), crash.kept.len()), (vec![FLAG], 7), "{failure}");
    let mismatch = failure.mismatch.as_ref().unwrap();
    assert_eq!((mismatch.found.as_str(), mismatch.allowed.join(" ")), ("Some(0)", "None Some(7)".to_owned()));
}

#[test]
fn a_nested_crash_is_shrunk_at_both_levels() {
    let failure = Explorer::default().explore(&two_accounts(), transfer, recovers_carelessly).unwrap_err();
    assert_eq!(failure.crashes.len(), 2, "{failure}");
    assert_eq!(lines(&failure.crashes[0].lost), [0; 0], "the first crash need not lose anything: {failure}");
    assert_eq!(failure.crashes[1].lost.len(), 1, "one balance is enough: {failure}");
    // With neither balance moved, nothing was acknowledged and nothing was done.
    assert_eq!(essential(&failure, 1), [64, LOG_VALID], "{failure}");
}

#[test]
fn a_straddling_store_loses_its_other_line() {
    let failure = Explorer::default().explore(&region(), straddling, whole).unwrap_err();
    let lost = &failure.crashes[0].lost;
    assert_eq!((lost.len(), lost[0].offset, lost[0].len_bytes), (1, SLOT + 64, 4), "{failure}");
}

/// Of a line, as many stores are kept as the failure allows.
#[test]
fn kept_prefixes_are_as_long_as_can_be() {
    let operation = |run: &Run<()>| (1..=40).for_each(|value| run.pmem().store_u64(SLOT, value));
    let check = |crash: &Crash<'_, ()>| match crash.pmem().load_u64(SLOT) {
        found @ 1..33 => Err(format!("{found} is too few")),
        _ => Ok(()),
    };
    let failure = Explorer::default().explore(&region(), operation, check).unwrap_err();
    assert_eq!(failure.message, "32 is too few");
    assert_eq!(failure.crashes[0].lost.len(), 8, "{failure}");
}

/// Restoring any one of the lost lines makes the check pass, whatever the search met first.
#[test]
fn the_loss_is_minimal_for_any_threshold() {
    for threshold in 1..=5 {
        let operation = |run: &Run<()>| {
            (0..10).for_each(|line| run.pmem().store_u64(64 * line, 1));
        };
        let check = |crash: &Crash<'_, ()>| {
            let lost = (0..10).filter(|line| crash.pmem().load_u64(64 * line) == 0).count();
            assert!(lost < threshold, "{lost} lines are lost");
        };
        let failure = Explorer::default().explore(&region(), operation, check).unwrap_err();
        assert_eq!(failure.crashes[0].lost.len(), threshold);
        assert_eq!(failure.message, format!("{threshold} lines are lost"));
    }
}

#[test]
fn shrinking_can_be_turned_off_and_is_in_replays() {
    let explorer = Explorer::default().shrink(false);
    let operation = |run: &Run<()>| (0..10).for_each(|line| run.pmem().store_u64(64 * line, 1));
    let check = |crash: &Crash<'_, ()>| {
        assert!((0..10).all(|line| crash.pmem().load_u64(64 * line) == 1), "one is lost");
    };
    let found = explorer.explore(&region(), operation, check).unwrap_err();
    assert!(!found.crashes[0].is_minimal && found.crashes[0].lost.len() == 10, "{found}");

    let failure = Explorer::default().explore(&region(), unordered, published).unwrap_err();
    let replay = failure.replay.as_deref().unwrap();
    let again = Explorer::default().replay(replay).explore(&region(), unordered, published).unwrap_err();
    assert!(!again.crashes[0].is_minimal);
    assert_eq!((lines(&again.crashes[0].lost), again.message), (vec![SLOT], failure.message.clone()));
}
