//! The search of the explorer: by the reads of recovery, with few crashes first, telling choices before random ones, on several threads.

use crate::common::*;

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
    pmem.put(TAIL, entries)?;
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
fn unread_lines_cost_nothing() {
    let image = Image::zeroed(1 << 16);
    let coverage = Explorer::default().check(&image, |run: &Run<u64>| append(run, 100), last_entry);
    assert!(coverage.is_exhaustive());
    let level = coverage.levels[0];
    assert_eq!((level.legal, level.tried), ((1 << 100) + 3, (1 << 100) + 3));
    assert_eq!(level.recoveries, 3, "no tail; a tail, not acknowledged; a tail, acknowledged");
}

#[test]
fn jobs_do_not_change_the_findings() {
    let image = Image::zeroed(1 << 16);
    // The last of the appends publishes before its entries are durable.
    let broken = |run: &Run<u64>| {
        for entries in 1..20 {
            append(run, entries)?;
        }
        run.pmem().store_u64(entry(20), 21);
        run.pmem().store_u64(TAIL, 21);
        DONE
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
    let counts = |coverage: &Coverage| {
        let levels = coverage.levels.iter();
        levels.map(|level| (level.points, level.legal, level.tried, level.is_exhaustive)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&one), counts(&three));
    assert_eq!(one.sites, three.sites);
}

#[test]
fn endless_recovery_is_a_failure() {
    const LOCK: u64 = 0;
    let operation = |run: &Run<()>| run.pmem().store_u64(LOCK, 1);
    let spins = |crash: &Crash<'_, ()>| while crash.pmem().load_u64(LOCK) == 1 {};
    let explorer = Explorer::default().accesses_per_check(1000);
    let failure = explorer.explore(&Image::zeroed(64), operation, spins).unwrap_err();
    assert!(failure.message.contains("recovery does not end"), "{failure}");
}

/// Each value is kept twice. Losing one copy is repaired; the bug is that nothing keeps both from being lost.
#[test]
fn two_lost_lines_are_found_beyond_the_bound() {
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

/// A failure that one crash shows has one crash, though an earlier point shows it by two.
#[test]
fn single_crashes_come_first() {
    const STEP: u64 = 0;
    // teeth: a crash may keep the step without it
    let operation = |run: &Run<()>| (1..=3).try_for_each(|step| run.pmem().put(STEP, step));
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
fn state_is_new_once() {
    let image = Image::zeroed(1 << 12);
    let looked_at = AtomicUsize::new(0);
    let operation = |run: &Run<()>| (0..10).for_each(|bit| run.pmem().store_u64(entry(bit), 1));
    let counts = |crash: &Crash<'_, ()>| {
        let there = (0..10).map(|bit| crash.pmem().load_u64(entry(bit))).sum::<u64>();
        if crash.is_new_state(&there) {
            looked_at.fetch_add(1, Ordering::Relaxed);
        }
    };
    for jobs in [1, 2] {
        looked_at.store(0, Ordering::Relaxed);
        let coverage = Explorer::default().jobs(jobs).check(&image, operation, counts);
        // Before all else, it also looks at what no crash has touched, before and after.
        assert_eq!((coverage.states, looked_at.load(Ordering::Relaxed)), (11, 2 + 11));
        assert_eq!(coverage.levels[0].recoveries, 1 << 10);
        assert!(coverage.to_string().ends_with("1024 recoveries; 11 states"), "{coverage}");
    }
}

/// What a check skips for a known state was looked at with its stores crashed, too.
#[test]
fn recovery_to_a_known_state_is_crashed() {
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
fn shrunk_failure_replays_at_an_untried_point() {
    let operation = |run: &Run<()>| {
        run.pmem().put(64, 1) // teeth: whether recovery finds the store or repeats it, it fails
    };
    let check = |crash: &Crash<'_, ()>| {
        assert_eq!(crash.pmem().load_u64(128), 0, "the third line is there");
        crash.pmem().store_u64(128, 1);
        crash.pmem().put(64, 1) // teeth: without it the crash is at the end, and of another name
    };
    for shrink in [false, true] {
        let explorer = Explorer::default().shrink(shrink);
        let [failure, again] = fails_and_replays(&explorer, &Image::zeroed(256), operation, check);
        assert!(again.message.contains("the third line is there"), "{again}");
        assert_eq!((again.crashes.len(), &again.replay), (2, &failure.replay));
    }
}

/// Lints record loads, and names do not count them.
#[test]
fn failure_found_with_lints_replays_without() {
    let operation = |run: &Run<u64>| {
        let pmem = run.pmem();
        let next = pmem.load_u64(TAIL) + 1;
        pmem.store_u64(entry(next - 1), next);
        let again = pmem.load_u64(entry(next - 1));
        pmem.store_u64(TAIL, again);
    };
    let linted = Explorer::default().lints(Lints::default());
    let failure = linted.explore(&Image::zeroed(1 << 12), operation, last_entry).unwrap_err();
    let replaying = Explorer::default().replay(name(&failure));
    let again = replaying.explore(&Image::zeroed(1 << 12), operation, last_entry);
    assert_eq!(again.unwrap_err().message, failure.message);
}

/// A recovery that reads too many pending lines is sampled, in time and memory.
#[test]
fn long_scan_is_sampled() {
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

/// An undo log, one entry for each of so many words on lines of their own: an entry is persistent before its word is stored to; the words are flushed
/// at the end, and then the log is marked as empty. Without the last flush of the words, nothing is wrong before the end.
fn undo_log(entries: u64, flushes_all: bool) -> impl Fn(&Run<()>) -> Result<(), FenceError> {
    move |run: &Run<()>| {
        let pmem = run.pmem();
        for entry in 0..entries {
            pmem.put(undo_entry(entry), 1 + entry)?;
            pmem.store_u64(undo_word(entries, entry), 1);
        }
        let flushed = if flushes_all { entries } else { entries - 1 };
        (0..flushed).for_each(|entry| pmem.flush(undo_word(entries, entry), 8));
        pmem.fence()?;
        pmem.put(0, 1) // teeth: marking may come late
    }
}

const fn undo_entry(entry: u64) -> u64 {
    64 + 8 * entry
}

/// On a line of its own, after the entries.
const fn undo_word(entries: u64, entry: u64) -> u64 {
    64 * (2 + entries / 8 + entry)
}

/// Rolls back if the log was not marked as empty; then all words must be set, or none.
fn rolls_back(entries: u64) -> impl Fn(&Crash<'_, ()>) -> Result<(), String> {
    move |crash: &Crash<'_, ()>| {
        let pmem = crash.pmem();
        let is_committed = pmem.load_u64(0) == 1;
        for entry in (0..entries).take_while(|&entry| pmem.load_u64(undo_entry(entry)) != 0) {
            if !is_committed {
                pmem.store_u64(undo_word(entries, entry), 0);
            }
        }
        let set = (0..entries).filter(|&entry| pmem.load_u64(undo_word(entries, entry)) == 1).count() as u64;
        if set == if is_committed { entries } else { 0 } {
            Ok(())
        } else {
            Err(format!("{set} words are set"))
        }
    }
}

const fn undo_image(entries: u64) -> u64 {
    64 * (3 + entries / 8 + entries)
}

#[test]
fn failure_at_the_end_of_a_long_run_is_found_by_rounds() {
    let start = Instant::now();
    let image = Image::zeroed(undo_image(60));
    let explorer = Explorer::default().crashes(1).repair(false);
    let failure = explorer.explore(&image, undo_log(60, false), rolls_back(60)).unwrap_err();
    assert_eq!(failure.message, "59 words are set");
    assert!(failure.coverage.recoveries() < 1500, "{}", failure.coverage);
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
}

#[test]
fn bound_of_recoveries_ends_the_search_of_a_long_run_at_all_points() {
    let image = Image::zeroed(undo_image(60));
    let explorer = Explorer::default().recoveries(1000);
    let coverage = explorer.check(&image, undo_log(60, true), rolls_back(60));
    assert!(!coverage.is_exhaustive());
    let level = coverage.levels[0];
    assert!(
        (1000..1010).contains(&coverage.recoveries())
            && level.points > 60
            && level.tried >= 2 * u128::from(level.points) - 10,
        "{coverage}"
    );
}

/// What the bound leaves out is not the end of the run, even if it is too small for all points.
#[test]
fn bound_of_recoveries_below_the_number_of_points_reaches_the_end_of_the_run() {
    let operation = |run: &Run<()>| (1..=1000).try_for_each(|count| run.pmem().put(0, count));
    for reduce in [true, false] {
        let seen = Seen::new();
        let check = |crash: &Crash<'_, ()>| seen.add(crash.pmem().load_u64(0));
        let explorer = Explorer::default().crashes(1).recoveries(40).reduce(reduce);
        let coverage = explorer.check(&Image::zeroed(64), operation, check);
        assert!(!coverage.is_exhaustive() && coverage.recoveries() == 40, "{coverage}");
        let seen = seen.take();
        let gaps = seen.iter().zip(seen.iter().skip(1)).map(|(one, next)| next - one);
        assert!(gaps.max().unwrap() <= 64 && *seen.last().unwrap() > 936, "{seen:?}");
    }
}

/// As large as a transaction of a real library gets. `PM_CRASHSIM_LONG_RUN_RECOVERIES` sets another bound.
#[test]
fn undo_log_of_2052_entries_is_explored_to_a_bound() {
    let bound = std::env::var("PM_CRASHSIM_LONG_RUN_RECOVERIES").ok().map(|bound| bound.parse().unwrap());
    let start = Instant::now();
    let image = Image::zeroed(undo_image(2052));
    let explorer = Explorer::default().crashes(1).recoveries(bound.unwrap_or(2500));
    let coverage = explorer.check(&image, undo_log(2052, true), rolls_back(2052));
    println!("{:?}", start.elapsed());
    assert!(coverage.levels[0].points > 2052 && !coverage.is_exhaustive(), "{coverage}");
    assert!(start.elapsed() < Duration::from_secs(60), "took {:?}", start.elapsed());
}

/// Everything about it takes minutes: the search, the search without each flush and fence, and shrinking a failure and looking for its repair.
#[test]
fn search_stops_when_its_time_is_up() {
    const TIME: Duration = Duration::from_millis(400);
    // Far less than all takes, and far more than the time on a machine that does much else.
    const MUCH: Duration = Duration::from_secs(20);
    let image = Image::zeroed(undo_image(60));
    let explorer = Explorer::default().time(TIME);
    let start = Instant::now();
    let coverage = explorer.explore(&image, undo_log(60, true), rolls_back(60)).unwrap();
    assert!(coverage.is_out_of_time && !coverage.is_exhaustive(), "{coverage}");
    assert!(coverage.to_string().ends_with("; out of time") && coverage.recoveries() > 0, "{coverage}");
    assert!(start.elapsed() < MUCH, "{:?}", start.elapsed());

    let start = Instant::now();
    let sites = explorer.redundant_sites(&image, undo_log(60, true), rolls_back(60)).unwrap();
    assert!(start.elapsed() < MUCH, "{:?} for all but {}", start.elapsed(), sites.len());

    let start = Instant::now();
    let failure = explorer.explore(&image, undo_log(60, false), rolls_back(60)).unwrap_err();
    assert!(!failure.crashes.is_empty(), "{failure}");
    assert!(start.elapsed() < MUCH, "{:?}", start.elapsed());

    // Enough time leaves no trace.
    let small = Image::zeroed(undo_image(2));
    let coverage =
        Explorer::default().time(Duration::from_secs(600)).explore(&small, undo_log(2, true), rolls_back(2));
    assert!(
        coverage.as_ref().is_ok_and(|coverage| coverage.is_exhaustive() && !coverage.is_out_of_time),
        "{coverage:?}"
    );
}

/// A list whose last element points to itself.
#[test]
fn recovery_that_takes_too_long_is_a_failure_with_a_name() {
    let operation = |run: &Run<()>| run.pmem().store_u64(0, 1);
    let limited = Explorer::default().time_per_check(Duration::from_millis(50)).repair(false);
    let never_ends = |crash: &Crash<'_, ()>| while crash.pmem().load_u64(0) == 1 {};
    let slow = |crash: &Crash<'_, ()>| {
        if crash.pmem().load_u64(0) == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let image = Image::zeroed(64);
    let failures = [limited.explore(&image, operation, never_ends), limited.explore(&image, operation, slow)];
    for failure in failures.map(Result::unwrap_err) {
        assert!(failure.message.starts_with("recovery takes too long: "), "{failure}");
        assert!(failure.replay.is_some() && failure.crashes.len() == 1, "{failure}");
    }
}

#[test]
fn check_that_rejects_untouched_states_is_reported() {
    let report = |wrong: u64| {
        let operation = |run: &Run<()>| {
            run.pmem().put(0, 1) // teeth: the check is wrong
        };
        let check = move |crash: &Crash<'_, ()>| assert_ne!(crash.pmem().load_u64(0), wrong);
        Explorer::default().explore(&Image::zeroed(64), operation, check).unwrap_err().to_string()
    };
    let [before, after] = [report(0), report(1)];
    assert!(
        before.contains("The check rejects even what was there before the operation, which no crash"),
        "{before}"
    );
    assert!(
        after.contains("rejects even what was there after the operation, with nothing lost, which"),
        "{after}"
    );
}
