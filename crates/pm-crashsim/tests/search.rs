//! How the explorer searches: by what recovery reads, with few crashes first, the telling choices before random ones, on
//! several cores.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Crash, Explorer, Image, Lints, Model, Run};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of the log's last entry.
const TAIL: u64 = 0;

const fn entry(number: u64) -> u64 {
    64 * (number + 1)
}

/// Fills entries, none of them durable before the tail is.
fn append(run: &Run<u64>, entries: u64) -> Result<(), FenceError> {
    let pmem = run.pmem();
    for number in 0..entries {
        pmem.store_u64(entry(number), number + 1);
    }
    pmem.flush(entry(0), 64 * entries);
    pmem.fence()?;
    pmem.store_u64(TAIL, entries);
    pmem.persist(TAIL, 8)?;
    run.ack(entries);
    Ok(())
}

/// Looks at the tail, and at the last entry only.
fn last_entry(crash: &Crash<'_, u64>) -> Result<(), String> {
    let tail = crash.pmem().load_u64(TAIL);
    let found = tail.checked_sub(1).map(|last| crash.pmem().load_u64(entry(last)));
    match (found, crash.acked()) {
        (Some(value), _) if value == tail => Ok(()),
        (None, []) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn lines_that_recovery_does_not_read_cost_nothing() {
    let image = Image::zeroed(1 << 16);
    let coverage = Explorer::default().check(&image, |run: &Run<u64>| append(run, 100), last_entry);
    assert!(coverage.is_exhaustive());
    let level = coverage.levels[0];
    assert_eq!((level.legal, level.tried), ((1 << 100) + 3, (1 << 100) + 3));
    assert_eq!(level.recoveries, 3, "no tail; a tail, not acknowledged; a tail, acknowledged");
}

#[test]
fn several_cores_find_what_one_finds() {
    let image = Image::zeroed(1 << 16);
    // The last of the appends publishes before its entries are durable.
    let broken = |run: &Run<u64>| {
        for entries in 1..20 {
            append(run, entries)?;
        }
        run.pmem().store_u64(entry(20), 21);
        run.pmem().store_u64(TAIL, 21);
        Ok::<(), FenceError>(())
    };
    let check = |crash: &Crash<'_, u64>| match last_entry(crash) {
        Err(_) if crash.pmem().load_u64(TAIL) < 20 => Ok(()),
        other => other,
    };
    let one = Explorer::default().explore(&image, broken, check).unwrap_err();
    let two = Explorer::default().jobs(2).explore(&image, broken, check).unwrap_err();
    assert_eq!((one.message.clone(), one.replay.clone()), (two.message.clone(), two.replay.clone()));

    let sound = |run: &Run<u64>| append(run, 12);
    let one = Explorer::default().check(&image, sound, last_entry);
    let three = Explorer::default().jobs(3).check(&image, sound, last_entry);
    let told = |coverage: &pm_crashsim::Coverage| {
        let levels = coverage.levels.iter();
        levels.map(|level| (level.points, level.legal, level.tried, level.is_exhaustive)).collect::<Vec<_>>()
    };
    assert_eq!(told(&one), told(&three));
    assert_eq!(one.sites, three.sites);
}

#[test]
fn a_recovery_that_never_ends_is_a_failure() {
    const LOCK: u64 = 0;
    let operation = |run: &Run<()>| run.pmem().store_u64(LOCK, 1);
    let spins = |crash: &Crash<'_, ()>| while crash.pmem().load_u64(LOCK) == 1 {};
    let explorer = Explorer::default().accesses_per_check(1000);
    let failure = explorer.explore(&Image::zeroed(64), operation, spins).unwrap_err();
    assert!(failure.message.contains("recovery does not end"), "{failure}");
}

/// Each value is kept twice. Losing one copy is repaired; the bug is that nothing keeps both from being lost.
#[test]
fn beyond_the_bound_two_lost_lines_are_found() {
    const PAIRS: u64 = 24;
    let operation = |run: &Run<()>| {
        for number in 0..PAIRS {
            run.pmem().store_u64(entry(number), 7);
            run.pmem().store_u64(entry(number + PAIRS), 7);
        }
    };
    let neither_or_most = |crash: &Crash<'_, ()>| {
        let copies = |number| [entry(number), entry(number + PAIRS)].map(|at| crash.pmem().load_u64(at));
        let lost: Vec<u64> = (0..PAIRS).filter(|&number| copies(number) == [0, 0]).collect();
        // With all the others there, a pair is missed; with many lost, the whole is given up.
        if lost.len() == 1 { Err(format!("pair {lost:?} is lost")) } else { Ok(()) }
    };
    let explorer = Explorer::default().choices_per_point(8192);
    let failure = explorer.explore(&Image::zeroed(1 << 14), operation, neither_or_most).unwrap_err();
    assert_eq!(failure.crashes[0].lost.len(), 2, "{failure}");
}

/// What one crash shows is told as one crash, though an earlier point shows it by two.
#[test]
fn fewest_crashes_come_first() {
    const STEP: u64 = 0;
    let operation = |run: &Run<()>| {
        for step in 1..=3 {
            run.pmem().store_u64(STEP, step);
            run.pmem().persist(STEP, 8)?; // teeth: a crash may keep the step without it
        }
        Ok::<(), FenceError>(())
    };
    let steps_on = |crash: &Crash<'_, ()>| {
        let step = crash.pmem().load_u64(STEP);
        assert!(step < 3, "step 3 must not be reached");
        if step > 0 {
            crash.pmem().store_u64(STEP, step + 1);
            crash.pmem().flush(STEP, 8); // teeth: a crash may keep the step without it
        }
        crash.pmem().fence() // teeth: a crash may keep the step without it
    };
    for model in Model::ALL {
        let failure = Explorer::new(model).explore(&Image::zeroed(64), operation, steps_on).unwrap_err();
        assert_eq!(failure.crashes.len(), 1, "{model}: {failure}");
    }
}

/// Recoveries from many images find few states, and a check may look closely at each once.
#[test]
fn a_state_is_looked_at_once() {
    let image = Image::zeroed(1 << 12);
    let looked_at = AtomicUsize::new(0);
    let operation = |run: &Run<()>| {
        for bit in 0..10 {
            run.pmem().store_u64(entry(bit), 1);
        }
    };
    let counts = |crash: &Crash<'_, ()>| {
        let there = (0..10).map(|bit| crash.pmem().load_u64(entry(bit))).sum::<u64>();
        if crash.is_new_state(&there) {
            looked_at.fetch_add(1, Ordering::Relaxed);
        }
    };
    for jobs in [1, 2] {
        looked_at.store(0, Ordering::Relaxed);
        let coverage = Explorer::default().jobs(jobs).check(&image, operation, counts);
        assert_eq!((coverage.states, looked_at.load(Ordering::Relaxed)), (11, 11));
        assert_eq!(coverage.levels[0].recoveries, 1 << 10);
        assert!(coverage.to_string().ends_with("1024 recoveries; 11 states"), "{coverage}");
    }
}

/// What a check skips for a known state was looked at with its stores crashed, too.
#[test]
fn what_is_behind_a_known_state_is_crashed_as_well() {
    const STEPS: [u64; 2] = [64, 128];
    let operation = |run: &Run<()>| run.pmem().store_u64(0, 1);
    let check = |crash: &Crash<'_, ()>| {
        let state = [0, 64, 128].map(|at| crash.pmem().load_u64(at));
        if state[2] == 1 && state[1] == 0 {
            return Err("the second step is there without the first".to_owned());
        }
        if !crash.is_new_state(&state) {
            return Ok(());
        }
        // Both at once: what the check itself does next is wrong.
        STEPS.iter().for_each(|&step| crash.pmem().store_u64(step, 1));
        Ok(())
    };
    for reduce in [false, true] {
        let explored = Explorer::default().reduce(reduce).explore(&Image::zeroed(256), operation, check);
        assert_eq!(explored.unwrap_err().crashes.len(), 2, "reduce: {reduce}");
    }
}

/// Shrunk, the first crash loses nothing, so that the recovery's first store changes nothing, and its fence makes nothing
/// durable: no crash would be tried before it. The name repeats it all the same.
#[test]
fn a_shrunk_failure_repeats_where_no_crash_would_be_tried() {
    let operation = |run: &Run<()>| {
        run.pmem().store_u64(64, 1);
        run.pmem().persist(64, 8) // teeth: whether recovery finds the store or repeats it, it fails
    };
    let check = |crash: &Crash<'_, ()>| {
        assert_eq!(crash.pmem().load_u64(128), 0, "the third line is there");
        crash.pmem().store_u64(128, 1);
        crash.pmem().store_u64(64, 1);
        crash.pmem().persist(64, 8) // teeth: without it the crash is at the end, and of another name
    };
    for shrink in [false, true] {
        let explorer = Explorer::default().shrink(shrink);
        let failure = explorer.explore(&Image::zeroed(256), operation, check).unwrap_err();
        let id = failure.replay.as_deref().unwrap();
        let again =
            Explorer::default().replay(id).explore(&Image::zeroed(256), operation, check).unwrap_err();
        assert!(again.message.contains("the third line is there"), "{id}: {again}");
        assert_eq!((again.crashes.len(), again.replay.as_deref()), (2, Some(id)));
    }
}

/// Lints record loads, and names do not count them.
#[test]
fn a_failure_found_with_lints_repeats_without() {
    let operation = |run: &Run<u64>| {
        let pmem = run.pmem();
        let next = pmem.load_u64(TAIL) + 1;
        pmem.store_u64(entry(next - 1), next);
        let again = pmem.load_u64(entry(next - 1));
        pmem.store_u64(TAIL, again);
    };
    let linted = Explorer::default().lints(Lints::default());
    let failure = linted.explore(&Image::zeroed(1 << 12), operation, last_entry).unwrap_err();
    let id = failure.replay.as_deref().unwrap();
    let again = Explorer::default().replay(id).explore(&Image::zeroed(1 << 12), operation, last_entry);
    assert_eq!(again.unwrap_err().message, failure.message);
}

/// A recovery that reads more pending lines than can be told apart is sampled, in time and memory.
#[test]
fn a_long_scan_is_sampled() {
    const LEN: u64 = 1 << 16;
    let ones = [1; 1 << 16];
    let operation = |run: &Run<()>| run.pmem().store(0, &ones);
    let scan = |crash: &Crash<'_, ()>| {
        let mut bytes = [0; 1 << 16];
        crash.pmem().load(0, &mut bytes);
    };
    let coverage = Explorer::default().choices_per_point(256).check(&Image::zeroed(LEN), operation, scan);
    assert!(!coverage.is_exhaustive() && coverage.levels[0].tried >= 256, "{coverage}");
}
