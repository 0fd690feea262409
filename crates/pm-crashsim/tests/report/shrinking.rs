//! What is left of a failure when all that does not matter to it is taken away.

use crate::common::*;
use crate::programs::*;
use pm_crashsim::PendingStore;
use std::sync::atomic::AtomicBool;

fn lines(stores: &[PendingStore]) -> Vec<u64> {
    stores.iter().map(|store| store.line_offset).collect()
}

fn essential(failure: &Failure, crash: usize) -> Vec<u64> {
    let kept = failure.crashes[crash].kept.iter();
    kept.take_while(|store| store.is_essential).map(|store| store.line_offset).collect()
}

#[test]
fn loss_is_shrunk_to_one_forgotten_flush() {
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
fn essential_kept_stores_are_distinguished() {
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
fn nested_crash_is_shrunk_at_both_levels() {
    let failure = Explorer::default().explore(&two_accounts(), transfer, recovers_carelessly).unwrap_err();
    assert_eq!(failure.crashes.len(), 2, "{failure}");
    assert_eq!(lines(&failure.crashes[0].lost), [0; 0], "the first crash need not lose anything: {failure}");
    assert_eq!(failure.crashes[1].lost.len(), 1, "one balance is enough: {failure}");
    // With neither balance moved, nothing was acknowledged and nothing was done.
    let moved = BALANCES.into_iter().find(|&balance| balance != failure.crashes[1].lost[0].line_offset);
    assert_eq!(essential(&failure, 1), [moved.unwrap(), LOG_VALID], "{failure}");
}

#[test]
fn straddling_store_loses_its_second_line() {
    let failure = Explorer::default().explore(&region(), straddling, whole).unwrap_err();
    let lost = &failure.crashes[0].lost;
    assert_eq!((lost.len(), lost[0].offset, lost[0].len_bytes), (1, SLOT + 64, 4), "{failure}");
}

/// Of a line, as many stores are kept as the failure allows.
#[test]
fn kept_prefixes_are_as_long_as_possible() {
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
fn loss_is_minimal_for_any_threshold() {
    for threshold in 1..=5 {
        let operation = |run: &Run<()>| (0..10).for_each(|line| run.pmem().store_u64(64 * line, 1));
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

    let [_, again] = fails_and_replays(&Explorer::default(), &region(), unordered, published);
    assert!(!again.crashes[0].is_minimal);
    assert_eq!(lines(&again.crashes[0].lost), [SLOT]);
}

#[test]
fn nondeterministic_check_is_reported() {
    let has_failed = AtomicBool::new(false);
    let check = |_: &Crash<'_, ()>| {
        if has_failed.swap(true, Ordering::Relaxed) { Ok(()) } else { Err("the first time") }
    };
    let failure = Explorer::default().explore(&region(), unordered, check).unwrap_err();
    assert!(
        failure.message.starts_with("the first time\n(the check passed when it was run again"),
        "{failure}"
    );
    assert!(!failure.crashes[0].is_minimal);
}

/// A thousand lines, of which none can be restored: that takes more runs than there are, and is not claimed.
#[test]
fn exhausted_shrinking_is_not_called_minimal() {
    let lines = 1000;
    let runs = AtomicUsize::new(0);
    let operation = |run: &Run<()>| (0..lines).for_each(|line| run.pmem().store_u64(64 * line, 1));
    let check = |crash: &Crash<'_, ()>| {
        runs.fetch_add(1, Ordering::Relaxed);
        let none = (0..lines).all(|line| crash.pmem().load_u64(64 * line) == 0);
        if none { Err("nothing is there") } else { Ok(()) }
    };
    let explorer = Explorer::default().repair(false);
    let failure = explorer.explore(&Image::zeroed(64 * lines), operation, check).unwrap_err();
    assert!(!failure.crashes[0].is_minimal && failure.crashes[0].lost.len() == 1000);
    assert!(runs.into_inner() <= 1 + 1000);
}

/// The name is that of the shrunk crash, also where the search only samples: a replay repeats just that.
#[test]
fn replay_repeats_the_shrunk_crash() {
    let survivors = |failure: &Failure| {
        let records = failure.crashes.iter().map(|crash| crash.record.kept());
        records.map(|kept| kept.iter().copied().collect::<BTreeSet<_>>()).collect::<Vec<_>>()
    };
    let [failure, again] = fails_and_replays(&Explorer::default(), &region(), one_forgotten, all_there);
    assert_eq!((survivors(&again), again.coverage.recoveries()), (survivors(&failure), 1));

    let [failure, again] =
        fails_and_replays(&Explorer::default(), &two_accounts(), transfer, recovers_carelessly);
    assert_eq!((survivors(&again), again.coverage.recoveries()), (survivors(&failure), 2));
}

/// Panics in threads that explore on behalf of a quiet one are quiet, too; here they are only to be right.
#[test]
fn jobs_do_not_change_the_shrunk_crash() {
    let shrunk = |jobs| {
        let explorer = Explorer::default().jobs(jobs);
        let failure = explorer.explore(&region(), unflushed, published).unwrap_err();
        (lines(&failure.crashes[0].lost), essential(&failure, 0), failure.repair)
    };
    assert_eq!(shrunk(1), shrunk(3));
}
