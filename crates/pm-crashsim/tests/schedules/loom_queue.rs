//! A persistent queue under every schedule of two threads, and every crash of each.

use crate::common::*;
use crate::queue::{self, Completed, Flaw, Part};
use loom::model::Builder;
use loom::thread;
use pm_crashsim::{ScheduleCoverage, ScheduleFailure, under_loom as front};

fn explore(
    explorer: &Explorer,
    builder: &Builder,
    flaw: Flaw,
    here: Part,
    there: Part,
) -> Result<ScheduleCoverage, Box<ScheduleFailure>> {
    let operation = move |run: &Arc<Run<Completed>>| {
        let other = Arc::clone(run);
        let thread = thread::spawn(move || there.run(&other, flaw));
        here.run(run, flaw)?;
        thread.join().expect("no thread panics")
    };
    let values = |part| match part {
        Part::Enqueue(values) => values,
        Part::Dequeue(_) => &[],
    };
    let check = |crash: &Crash<'_, Completed>| queue::check(crash, &[values(here), values(there)]);
    front::explore(explorer, builder, queue::LEN_BYTES, operation, check)
}

/// Explores to the end, and prints the coverage.
#[track_caller]
fn passes(explorer: &Explorer, flaw: Flaw, here: Part, there: Part) -> ScheduleCoverage {
    let start = Instant::now();
    let coverage =
        explore(explorer, &Builder::new(), flaw, here, there).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{}: {coverage}; took {:?}", explorer.model(), start.elapsed());
    assert!(coverage.is_complete && coverage.crashes.is_exhaustive(), "{coverage}");
    assert!(start.elapsed() < Duration::from_secs(30));
    coverage
}

#[track_caller]
fn fails(explorer: &Explorer, flaw: Flaw, here: Part, there: Part) -> Box<ScheduleFailure> {
    match explore(explorer, &Builder::new(), flaw, here, there) {
        Ok(coverage) => panic!("{flaw:?} was not found: {coverage}"),
        Err(failure) => failure,
    }
}

#[test]
fn enqueue_and_enqueue() {
    for model in Model::ALL {
        let coverage = passes(&Explorer::new(model), Flaw::None, Part::Enqueue(&[1]), Part::Enqueue(&[2]));
        assert!(coverage.schedules > 100, "{coverage}");
    }
}

#[test]
fn enqueue_and_dequeue() {
    for model in Model::ALL {
        passes(&Explorer::new(model), Flaw::None, Part::Enqueue(&[1]), Part::Dequeue(1));
    }
}

#[test]
fn two_enqueues_and_two_dequeues_with_few_preemptions() {
    let mut builder = Builder::new();
    // Most bugs need no more than two; without a bound there are a hundred thousand schedules.
    builder.preemption_bound = Some(2);
    let (producer, consumer) = (Part::Enqueue(&[1, 2]), Part::Dequeue(2));
    let explored = explore(&Explorer::default(), &builder, Flaw::None, producer, consumer);
    let coverage = explored.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{coverage}");
    assert!(!coverage.is_complete && coverage.schedules > 100, "{coverage}");
}

#[test]
fn value_behind_a_non_durable_one_is_found() {
    let failure = fails(&Explorer::default(), Flaw::DoesNotHelp, Part::Enqueue(&[1]), Part::Enqueue(&[2]));
    let story = failure.to_string();
    assert!(story.contains("a value is behind an empty slot: head 0, slots [0, "), "{story}");
    assert!(failure.schedule > 1, "one thread after the other does no harm: {story}");
    assert!(story.contains("thread 0:\n    exchange at ") && story.contains("thread 1:\n"), "{story}");
    let again = fails(&Explorer::default(), Flaw::DoesNotHelp, Part::Enqueue(&[1]), Part::Enqueue(&[2]));
    assert_eq!(again.to_string(), story, "the schedules come in the same order");
}

/// On x86 the exchange that follows is a fence. Code for other machines must not rely on it.
#[test]
fn missing_fence_is_found_where_exchanges_do_not_fence() {
    let (first, second) = (Part::Enqueue(&[1]), Part::Enqueue(&[2]));
    passes(&Explorer::default(), Flaw::HelpsWithoutFence, first, second);
    let portable = Explorer::default().exchange_fences(false);
    let failure = fails(&portable, Flaw::HelpsWithoutFence, first, second);
    assert!(failure.failure.message.starts_with("a value is behind an empty slot"), "{failure}");
    passes(&portable, Flaw::None, first, second);
}

#[test]
fn early_dequeue_is_found() {
    let failure = fails(&Explorer::default(), Flaw::TakesEarly, Part::Enqueue(&[1]), Part::Dequeue(1));
    assert!(failure.failure.message.starts_with("the head is past the last value"), "{failure}");
}

#[test]
fn deadlock_is_a_failure_of_the_operation() {
    let operation = |_: &Arc<Run<()>>| {
        let locks = [0, 1].map(|_| Arc::new(loom::sync::Mutex::new(())));
        let both = |first: usize| {
            let locks = locks.clone();
            thread::spawn(move || {
                let outer = locks[first].lock().expect("no thread panics");
                let inner = locks[1 - first].lock().expect("no thread panics");
                drop((inner, outer));
            })
        };
        for thread in [both(0), both(1)] {
            thread.join().expect("no thread panics");
        }
    };
    let explored =
        front::explore(&Explorer::default(), &Builder::new(), 64, operation, |_: &Crash<'_, ()>| {});
    let failure = explored.expect_err("each waits for the other");
    assert!(failure.failure.message.starts_with("the operation itself failed: deadlock"), "{failure}");
}

/// Two threads that count under a spin lock in the region. Recovery releases the lock of dead threads.
fn locked(explorer: &Explorer, found: &Seen<[u64; 3]>) -> ScheduleCoverage {
    const LOCK: u64 = 0;
    let count = |run: &Run<u64>, word: u64| {
        let pmem = run.pmem();
        while pmem.compare_exchange_u64(LOCK, 0, 1).is_err() {
            thread::yield_now();
        }
        pmem.put(word, 1)?;
        pmem.store_u64(LOCK, 0);
        run.ack(word);
        DONE
    };
    let operation = move |run: &Arc<Run<u64>>| {
        let other = Arc::clone(run);
        let thread = thread::spawn(move || count(&other, 72));
        count(run, 64)?;
        thread.join().expect("no thread panics")
    };
    let check = |crash: &Crash<'_, u64>| {
        let pmem = crash.pmem();
        found.add([LOCK, 64, 72].map(|word| pmem.load_u64(word)));
        pmem.store_u64(LOCK, 0);
        assert!(crash.acked().iter().all(|&word| pmem.load_u64(word) == 1));
    };
    front::explore(explorer, &Builder::new(), 128, operation, check).unwrap()
}

#[test]
fn recoveries_are_remembered_across_schedules() {
    for crashes in [2, 3] {
        let outcomes = |reduce| {
            let found = Seen::new();
            let coverage = locked(&Explorer::default().crashes(crashes).reduce(reduce), &found);
            assert!(coverage.is_complete && coverage.crashes.is_exhaustive(), "{coverage}");
            (found.take(), coverage)
        };
        let ((every, _), (reduced, coverage)) = (outcomes(false), outcomes(true));
        assert_eq!(reduced, every, "{crashes} crashes");
        // Each image once when it is crashed once, once more to be crashed again with a few choices and once more with all, in each
        // recovery inside, and after each history. There are many more schedules.
        let recoveries = coverage.crashes.recoveries();
        assert!(
            recoveries <= (crashes as u64 + 2) * coverage.images && coverage.schedules > 1000,
            "{crashes} crashes: {coverage}"
        );
    }
}
