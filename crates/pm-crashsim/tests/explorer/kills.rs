//! A process killed anywhere, a second one on the caches that it left, and a power failure in that.

use crate::harness::*;
use pm_crashsim::Moment;

/// How many entries of the log at [`ENTRIES`] were used up.
const USED: u64 = 0;
const ENTRIES: u64 = 64;

/// Uses up the first entry.
fn use_up(run: &Run<()>) -> Result<(), FenceError> {
    run.pmem().put(USED, 1)?;
    run.ack(());
    Ok(())
}

/// Recovery frees the entry if it was used up, so that it must not be counted as unused later.
fn recover(crash: &Crash<'_, ()>, flushes: bool) -> Result<(), String> {
    let pmem = crash.pmem();
    if flushes {
        pmem.persist(USED, 8).map_err(|error| error.to_string())?;
    }
    match (pmem.load_u64(USED), pmem.load_u64(ENTRIES)) {
        (0, 7) if crash.acked().is_empty() => Ok(()),
        (1, _) => pmem.put(ENTRIES, 0).map_err(|error| error.to_string()),
        found => Err(format!("{found:?} was found after {} acknowledgements", crash.acked().len())),
    }
}

fn relies(crash: &Crash<'_, ()>) -> Result<(), String> {
    recover(crash, false)
}

fn flushes(crash: &Crash<'_, ()>) -> Result<(), String> {
    recover(crash, true)
}

fn one_entry() -> Image {
    let pmem = SimPmem::new(4096);
    pmem.store_u64(ENTRIES, 7);
    pmem.to_image()
}

fn killed() -> Explorer {
    Explorer::default().kills(1)
}

fn failure() -> Failure {
    *killed().explore(&one_entry(), use_up, relies).unwrap_err()
}

#[test]
fn second_process_that_relies_on_unflushed_stores_fails() {
    let coverage = Explorer::default().check(&one_entry(), use_up, relies);
    assert!(coverage.is_exhaustive() && coverage.kills.legal == 0, "{coverage}");
    let failure = failure();
    assert_eq!(failure.message, "(0, 0) was found after 0 acknowledgements");
    assert_eq!(failure.crashes.len(), 1);
    assert!(failure.crashes[0].is_minimal);
    let [lost] = &failure.crashes[0].lost[..] else { panic!("{failure}") };
    assert_eq!((lost.offset, lost.len_bytes), (USED, 8));
}

#[test]
fn second_process_that_flushes_on_open_passes() {
    let coverage = killed().check(&one_entry(), use_up, flushes);
    assert!(coverage.is_exhaustive(), "{coverage}");
    // Before the store, before the fence, which makes no difference before the flush, at the fence, and when it was acknowledged.
    assert_eq!((coverage.kills.legal, coverage.kills.tried), (4, 4), "{coverage}");
    assert!(coverage.after_kill.points > 0 && coverage.after_kill.tried == coverage.after_kill.legal);
    let report = coverage.to_string();
    assert!(
        report.contains("kills: tried 4 of 4 that differ, 4 second processes; crashes after a kill: tried"),
        "{report}"
    );
}

#[test]
fn flush_on_open_is_needed_only_where_processes_are_killed() {
    let redundant =
        |explorer: &Explorer| explorer.redundant_sites(&one_entry(), use_up, flushes).unwrap().len();
    // The entry that is free may be found unused, and is freed once more.
    assert_eq!(redundant(&killed()), 2, "the flush and the fence after freeing it");
    assert_eq!(redundant(&Explorer::default()), 4, "and the flush and the fence on opening");
}

#[test]
fn kills_differ_by_model() {
    let fails =
        Model::ALL.map(|model| Explorer::new(model).kills(1).explore(&one_entry(), use_up, relies).is_err());
    // In Model::ALL's order: what survives in caches is durable, and opening a file flushes it.
    assert_eq!(fails, [false, true, true, true, false]);
    for model in Model::ALL {
        assert!(
            Explorer::new(model).kills(1).check(&one_entry(), use_up, flushes).is_exhaustive(),
            "{model}"
        );
    }
}

#[test]
fn kill_replays_by_name() {
    let failure = failure();
    let name = name(&failure);
    let runs = AtomicU64::new(0);
    let counted = |crash: &Crash<'_, ()>| {
        runs.fetch_add(1, Ordering::Relaxed);
        relies(crash)
    };
    let again = killed().replay(name).explore(&one_entry(), use_up, counted).unwrap_err();
    assert_eq!(runs.load(Ordering::Relaxed), 2, "the second process, and the recovery from the crash");
    assert_eq!((again.message, again.replay), (failure.message.clone(), failure.replay.clone()));
    let stores_nothing = |_: &Crash<'_, ()>| ();
    let other = killed().replay(name).explore(&one_entry(), use_up, stores_nothing).unwrap_err();
    assert_eq!(other.message, format!("no crash of this run is {name}"));
    let elsewhere = |run: &Run<()>| {
        run.pmem().store_u64(128, 1);
        use_up(run)
    };
    let other = killed().replay(name).explore(&one_entry(), elsewhere, relies).unwrap_err();
    assert_eq!(other.message, format!("no crash of this run is {name}"));
}

#[test]
fn failure_of_the_second_process_is_reported() {
    let check = |crash: &Crash<'_, ()>| match crash.crashes() {
        0 if crash.pmem().load_u64(USED) == 1 => Err("used up, says the second process".to_owned()),
        _ => Ok(()),
    };
    let [failure, _] = fails_and_replays(&killed(), &one_entry(), use_up, check);
    let [crash] = &failure.crashes[..] else { panic!("{failure}") };
    assert!(
        matches!(&crash.moment, Moment::Killed(at) if matches!(**at, Moment::Before("flush", _))),
        "{failure}"
    );
    assert!(crash.lost.is_empty());
    assert_eq!(crash.record.image().unwrap().to_bytes()[0], 1);
    let report = failure.to_string();
    assert!(report.contains("killed right before the flush at") && report.contains("━ kill ━"), "{report}");
    assert!(name(&failure).ends_with(":1!"), "{failure}");
}

#[test]
fn kill_is_drawn_as_an_event() {
    let report = failure().to_string();
    assert!(report.lines().any(|row| row.trim_start().starts_with("1  t0 kill ")), "{report}");
    assert!(report.contains("✗ lost") && report.contains("━ crash ━"), "{report}");
}

#[test]
fn trace_file_keeps_kills() {
    let failure = failure();
    let file = TraceFile::from_failure(&failure).unwrap();
    let again = TraceFile::from_bytes(&file.to_bytes()).unwrap();
    assert_eq!(again.to_bytes(), file.to_bytes());
    let image = |file: &TraceFile| file.crashes()[0].image().unwrap().to_bytes();
    assert_eq!(image(&again), image(&file));
    assert!(again.trace().events().iter().any(|event| event.kind.name() == "kill"));
    assert!(again.without_crashes().crash_points().len() == 1, "before the fence");
}

#[test]
fn test_of_a_failure_kills_where_the_exploration_did() {
    let source = failure().to_test().unwrap();
    assert!(source.contains("pmem.kill();"), "{source}");
    // The source, by hand.
    let operation = |run: &Run<()>| {
        run.pmem().store_u64(USED, 1);
        run.pmem().kill();
        run.pmem().put(ENTRIES, 0)
    };
    let (_, name) = source.split_once(".replay(\"").unwrap();
    let name = name.split('"').next().unwrap();
    let again = Explorer::default().replay(name).explore(&one_entry(), operation, relies).unwrap_err();
    assert_eq!(again.message, "(0, 0) was found after 0 acknowledgements", "{source}");
}

/// Fills words on lines of their own, one after the other, each persistent before the next.
fn fill(run: &Run<()>, words: u64) -> Result<(), FenceError> {
    (0..words).try_for_each(|word| run.pmem().put(64 * word, 1))
}

#[test]
fn equivalent_kills_are_tried_once() {
    let explored = |reduce: bool, check: fn(&Crash<'_, ()>)| {
        let explorer = killed().reduce(reduce);
        explorer.check(&Image::zeroed(4096), |run: &Run<()>| fill(run, 16), check)
    };
    let looks_at_one = |crash: &Crash<'_, ()>| {
        let found = crash.pmem().load_u64(0);
        crash.pmem().put(2048, found).unwrap(); // teeth: no check asks for it
    };
    let (reduced, all) = (explored(true, looks_at_one), explored(false, looks_at_one));
    // Of each word, not stored, stored and durable.
    assert_eq!([reduced.kills.legal, all.kills.legal], [33, 33]);
    assert_eq!([reduced.kills.processes, all.kills.processes], [3, 33], "{reduced}");
    assert!(reduced.is_exhaustive() && all.is_exhaustive());
}

#[test]
fn kill_of_the_same_state_is_tried_once() {
    // Back and forth: each word has two values only, and what is stored is what was there.
    let operation = |run: &Run<()>| (0..5).try_for_each(|round| run.pmem().put(0, round % 2));
    let coverage = killed().check(&Image::zeroed(64), operation, |crash: &Crash<'_, ()>| {
        crash.pmem().load_u64(0);
    });
    // 0 and 1 durable, and the other one of either on the way.
    assert_eq!(coverage.kills.legal, 4, "{coverage}");
}

#[test]
fn threads_of_an_exploration_share_the_kills() {
    for jobs in [1, 3] {
        let operation = |run: &Run<()>| fill(run, 16);
        let all = |crash: &Crash<'_, ()>| assert!((0..16).all(|word| crash.pmem().load_u64(64 * word) < 2));
        let coverage = killed().jobs(jobs).check(&Image::zeroed(4096), operation, all);
        assert_eq!((coverage.kills.legal, coverage.kills.tried), (33, 33), "{jobs} jobs: {coverage}");
        assert!(killed().jobs(jobs).explore(&one_entry(), use_up, relies).is_err());
    }
}

/// The second process acknowledges the value that it found, and may not make it durable.
#[test]
fn acknowledgement_of_the_second_process_is_checked() {
    let second = |flushes: bool| {
        move |run: &Run<u64>| {
            let found = run.pmem().load_u64(0);
            if flushes {
                run.pmem().persist(0, 8)?;
            }
            run.ack(found);
            DONE
        }
    };
    let first = |run: &Run<u64>| run.pmem().put(0, 7);
    let check = |crash: &Crash<'_, u64>| match crash.acked() {
        [found] if crash.pmem().load_u64(0) != *found => Err(format!("{found} was acknowledged")),
        _ => Ok(()),
    };
    let image = Image::zeroed(64);
    let explorer = Explorer::default();
    let failure = explorer.explore_restarted(&image, first, second(false), check).unwrap_err();
    assert_eq!(failure.message, "7 was acknowledged");
    let again =
        explorer.clone().replay(name(&failure)).explore_restarted(&image, first, second(false), check);
    assert_eq!(again.unwrap_err().message, failure.message);
    let coverage = explorer.check_restarted(&image, first, second(true), check);
    assert!(coverage.is_exhaustive() && coverage.kills.legal == 3, "{coverage}");
    let failing = |_: &Run<u64>| Err("cannot be opened".to_owned());
    let failure = explorer.explore_restarted(&image, first, failing, check).unwrap_err();
    assert_eq!(failure.message, "the process after the kill failed: cannot be opened");
}

/// A log of words, each appended by one store and a flush and a fence. The first word that is 0 ends it.
#[derive(Clone, Copy)]
struct Log {
    flushes_on_open: bool,
}

struct Opened {
    pmem: Arc<SimPmem>,
    len: u64,
}

impl Subject for Log {
    type Op = u64;
    type State = Vec<u64>;
    type Store = Opened;
    type Error = FenceError;

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Opened, FenceError> {
        let len = (0..16).take_while(|word| pmem.load_u64(64 * word) != 0).count() as u64;
        if self.flushes_on_open && len > 0 {
            pmem.persist(64 * (len - 1), 8)?;
        }
        Ok(Opened { pmem, len })
    }

    fn apply(&self, log: &mut Opened, value: &u64) -> Result<(), FenceError> {
        log.pmem.put(64 * log.len, *value)?;
        log.len += 1;
        Ok(())
    }

    fn observe(&self, log: &Opened) -> Result<Vec<u64>, FenceError> {
        Ok((0..log.len).map(|word| log.pmem.load_u64(64 * word)).collect())
    }
}

oracle!(Log: Vec<u64> = Vec::new(), |state, value| state.push(*value));

#[test]
fn sequences_go_on_after_a_kill() {
    let sequences = |flushes_on_open, kills| {
        let sequences = Sequences::new(Log { flushes_on_open }, 4096).unwrap();
        sequences.explorer(Explorer::default().kills(kills))
    };
    assert!(
        sequences(false, 0).explore_all(&[1, 2], 2).unwrap().is_exhaustive,
        "with no kill, nothing is missed"
    );
    let failure = sequences(false, 1).explore_all(&[1, 2], 2).unwrap_err();
    assert_eq!(failure.ops.len(), 1);
    assert!(failure.failure.message.starts_with("recovery returned [1]"), "{failure}");
    let name = name(&failure.failure);
    assert!(name.contains('!'), "{name}");
    let replaying = sequences(false, 0).explorer(killed().replay(name)).further(&[1, 2], 8);
    let again = replaying.explore(&failure.ops).unwrap_err();
    assert_eq!(problem(&again), problem(&failure));
    let coverage = sequences(true, 1).check_all(&[1, 2], 3);
    assert!(coverage.is_exhaustive);
}

#[test]
fn kills_add_no_crash_where_there_is_no_kill() {
    let runs = AtomicU64::new(0);
    let check = |_: &Crash<'_, ()>| {
        runs.fetch_add(1, Ordering::Relaxed);
    };
    let operation = |run: &Run<()>| fill(run, 1);
    let plain = Explorer::default().check(&Image::zeroed(64), operation, check);
    assert!(plain.is_exhaustive(), "{plain}");
    let runs = runs.load(Ordering::Relaxed);
    assert_eq!(plain.recoveries() + 2, runs, "and the check of what no crash has touched");
    let with_kills = killed().check(&Image::zeroed(64), operation, check);
    assert_eq!(with_kills.levels, plain.levels);
}

#[test]
fn kill_gives_the_writers_lock_to_the_next_process() {
    let pmem = SimPmem::new(4096);
    let killed = pmem.lock_writer();
    assert!(killed.is_some() && pmem.lock_writer().is_none());
    pmem.kill();
    let next = pmem.lock_writer();
    assert!(next.is_some());
    drop(killed);
    assert!(pmem.lock_writer().is_none(), "what is left of the killed process gives up nothing");
}
