//! A persistent queue under random schedules of four threads, and every crash of each.

use crate::common::*;
use crate::queue::{self, Completed, Flaw, Part};
use pm_crashsim::{ScheduleCoverage, ScheduleFailure, under_shuttle as front};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, thread};

const FIRST: &[u64] = &[11, 12];
const SECOND: &[u64] = &[21, 22];
const THIRD: &[u64] = &[31];

/// Three threads enqueue, one dequeues twice.
fn explore(
    explorer: &Explorer,
    scheduler: impl Scheduler + Send + 'static,
    flaw: Flaw,
) -> Result<ScheduleCoverage, Box<ScheduleFailure>> {
    let operation = move |run: &Arc<Run<Completed>>| {
        let producers = [FIRST, SECOND, THIRD].map(|values| {
            let run = Arc::clone(run);
            thread::spawn(move || Part::Enqueue(values).run(&run, flaw))
        });
        Part::Dequeue(2).run(run, flaw)?;
        producers.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    };
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let check = |crash: &Crash<'_, Completed>| queue::check(crash, &[FIRST, SECOND, THIRD]);
    front::explore(explorer, scheduler, config, queue::LEN_BYTES, operation, check)
}

#[test]
fn sound_queue_passes_and_seeds_select_schedules() {
    let tried = |seed| {
        let scheduler = RandomScheduler::new_from_seed(seed, 300);
        let explored = explore(&Explorer::default(), scheduler, Flaw::None);
        explored.unwrap_or_else(|failure| panic!("{failure}"))
    };
    let (first, again, other) = (tried(1), tried(1), tried(2));
    println!("{first}");
    assert_eq!((first.schedules, first.is_complete), (300, false));
    assert!(first.crashes.is_exhaustive(), "{first}");
    assert_eq!(first, again);
    assert_ne!(first.images, other.images);
}

#[test]
fn pct_scheduler_finds_each_bug() {
    for (flaw, explorer) in [
        (Flaw::DoesNotHelp, Explorer::default()),
        (Flaw::HelpsWithoutFence, Explorer::default().exchange_fences(false)),
        (Flaw::TakesEarly, Explorer::default()),
    ] {
        let scheduler = || PctScheduler::new_from_seed(3, 3, 1000);
        let failure = explore(&explorer, scheduler(), flaw).expect_err("the bug");
        println!("{flaw:?}: schedule {}: {}", failure.schedule, failure.failure.message);
        let again = explore(&explorer, scheduler(), flaw).expect_err("the bug again");
        assert_eq!(again.to_string(), failure.to_string());
        let sound = explore(&explorer, PctScheduler::new_from_seed(3, 3, 100), Flaw::None);
        assert_eq!(sound.expect("no bug").schedules, 100);
    }
}

#[test]
fn panic_is_a_failure_of_the_operation() {
    let operation = |_: &Arc<Run<()>>| panic!("no operation");
    let (scheduler, config) = (RandomScheduler::new_from_seed(1, 10), Config::new());
    let explored: Result<_, _> =
        front::explore::<(), (), ()>(&Explorer::default(), scheduler, config, 64, operation, |_| {});
    let failure = explored.expect_err("it panics");
    assert_eq!(failure.schedule, 1);
    assert!(failure.failure.message.contains("no operation"), "{failure}");
}
