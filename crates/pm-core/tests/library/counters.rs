//! Cache-line counters: counts, actions, order, threads, and what they cost in lines and fences.

use core::ops::Range;
use pm_core::counters::{CounterOptions, LineCounters};
use pm_core::{Counting, FenceError, Pmem, Region};
use pm_testkit::{Hook, Hooked};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Counted = LineCounters<Counting<Region>>;

fn counters(options: &CounterOptions) -> Counted {
    LineCounters::new(Counting::new(Region::anonymous(1 << 20).unwrap()), options)
}

/// The lines and fences so far.
fn cost(counters: &Counted) -> (u64, u64) {
    let counts = counters.get_ref().counts();
    (counts.lines, counts.fences)
}

#[test]
fn count_is_the_number_of_lines() {
    let pmem = counters(&CounterOptions::new());
    assert_eq!(pmem.scheck(pmem.sgroup().unwrap()), 0, "a group without stores");
    pmem.store(60, &[1; 8]);
    pmem.store_u64(0, 1);
    pmem.store(640, &[1; 129]);
    pmem.store_u128(1024, 1);
    assert_eq!(pmem.compare_exchange_u64(1024, 1, 2), Ok(1));
    pmem.store(2048, &[]);
    let group = pmem.sgroup().unwrap();
    assert_eq!((pmem.scheck(group), pmem.lag()), (6, 1));
    assert_eq!(cost(&pmem), (0, 0));
    pmem.write_back().unwrap();
    assert_eq!((pmem.scheck(group), pmem.lag()), (0, 0));
    assert_eq!(cost(&pmem), (6, 1));
    pmem.write_back().unwrap();
    assert_eq!(cost(&pmem), (6, 1), "nothing waits");
}

/// What the program writes back itself does not count.
#[test]
fn flushed_and_fenced_lines_do_not_count() {
    let pmem = counters(&CounterOptions::new());
    pmem.store(0, &[1; 256]);
    pmem.flush(64, 128);
    pmem.fence().unwrap();
    pmem.store(64, &[2; 8]);
    let group = pmem.sgroup().unwrap();
    assert_eq!(pmem.scheck(group), 3, "the first, the last, and the second again");
    pmem.store(0, &[1; 256]);
    pmem.flush(0, 256);
    pmem.fence().unwrap();
    assert_eq!(pmem.scheck(pmem.sgroup().unwrap()), 0);
    assert_eq!(pmem.scheck(group), 3, "these lines are noted for a group by its own thread only");
}

/// A group has at most so many lines; what it stores to others is durable when it ends.
#[test]
fn lines_beyond_the_limit_are_written_back_at_once() {
    let pmem = counters(&CounterOptions::new().lines_max(2));
    pmem.store(0, &[1; 128]);
    let before = cost(&pmem);
    pmem.store(128, &[1; 192]);
    assert_eq!(cost(&pmem), (before.0 + 3, before.1));
    pmem.store(64, &[2; 8]);
    assert_eq!(cost(&pmem).0, before.0 + 3, "a line of the group");
    pmem.store_u64(640, 1);
    let group = pmem.sgroup().unwrap();
    assert_eq!((pmem.scheck(group), cost(&pmem)), (2, (before.0 + 4, before.1 + 1)));
}

/// Without a free counter, a group is durable when it ends; once one is free again, it is used.
#[test]
fn groups_without_a_counter_are_durable_at_their_end() {
    let pmem = counters(&CounterOptions::new().counters(2));
    let begin = |offset| {
        pmem.store(offset, &[1; 8]);
        pmem.sgroup().unwrap()
    };
    let (first, second) = (begin(0), begin(64));
    let third = begin(128);
    assert_eq!([first, second, third].map(|group| pmem.scheck(group)), [1, 1, 0]);
    assert_eq!(cost(&pmem), (1, 1));
    pmem.write_back().unwrap();
    let fourth = begin(0);
    assert_eq!([first, second, third, fourth].map(|group| pmem.scheck(group)), [0, 0, 0, 1]);
}

/// Many groups share a fence, and groups that store to the same line its write-back.
#[test]
fn groups_share_lines_and_fences() {
    let pmem = counters(&CounterOptions::new().lag(64));
    let groups = 65 * 100;
    for number in 0..groups {
        pmem.store(number % 1000 * 1024, &[1; 256]);
        pmem.store_u64(1000 * 1024, number);
        pmem.sgroup().unwrap();
        assert!(pmem.lag() <= 64);
    }
    let (lines, fences) = cost(&pmem);
    assert_eq!(fences, 100);
    assert_eq!(lines, groups * 4 + 100);
    println!("{} fences a group", fences as f64 / groups as f64);
}

#[test]
fn actions_run_in_order_when_their_groups_are_durable() {
    let pmem = counters(&CounterOptions::new().lag(3));
    let done = Arc::new(Mutex::new(Vec::new()));
    let add = |number: u64| {
        let done = Arc::clone(&done);
        move || done.lock().unwrap().push(number)
    };
    pmem.on_durable(pmem.sgroup().unwrap(), add(0));
    assert_eq!(*done.lock().unwrap(), [0], "a group that is durable");
    for number in 1..=3 {
        pmem.store(number * 64, &[1; 8]);
        pmem.on_durable(pmem.sgroup().unwrap(), add(number));
    }
    assert_eq!((pmem.poll(), done.lock().unwrap().len()), (0, 1));
    pmem.store(0, &[1; 8]);
    pmem.on_durable(pmem.sgroup().unwrap(), add(4));
    assert_eq!(*done.lock().unwrap(), [0, 1, 2, 3, 4]);
}

/// An action may store, end a group, and add an action.
#[test]
fn action_may_use_the_counters() {
    let pmem = Arc::new(counters(&CounterOptions::new()));
    pmem.store(0, b"contents");
    let data = pmem.sgroup().unwrap();
    let is_published = Arc::new(AtomicBool::new(false));
    let (of_action, flag) = (Arc::clone(&pmem), Arc::clone(&is_published));
    pmem.on_durable(data, move || {
        of_action.store_u64(64, 8);
        let link = of_action.sgroup().unwrap();
        of_action.on_durable(link, move || flag.store(true, Ordering::Relaxed));
    });
    pmem.write_back().unwrap();
    assert!(!is_published.load(Ordering::Relaxed));
    pmem.write_back().unwrap();
    assert!(is_published.load(Ordering::Relaxed));
}

/// A group that needs no write-back waits for those before it.
#[test]
fn groups_in_order_wait_for_earlier_ones() {
    for is_in_order in [false, true] {
        let pmem = counters(&CounterOptions::new().in_order(is_in_order));
        pmem.store(0, &[1; 8]);
        let first = pmem.sgroup().unwrap();
        let second = pmem.sgroup().unwrap();
        assert_eq!((pmem.scheck(first), pmem.scheck(second)), (1, u32::from(is_in_order)));
        pmem.write_back().unwrap();
        assert_eq!((pmem.scheck(first), pmem.scheck(second)), (0, 0));
    }
}

/// Fails fences while this is set.
#[derive(Debug)]
struct Broken(AtomicBool);

impl Hook<Region> for Broken {
    fn fence(&self, region: &Region) -> Result<(), FenceError> {
        if self.0.load(Ordering::Relaxed) { Err(FenceError::Poisoned) } else { region.fence() }
    }
}

#[test]
fn groups_wait_if_the_fence_fails() {
    let inner = Hooked::new(Region::anonymous(1 << 20).unwrap(), Broken(AtomicBool::new(true)));
    let pmem = LineCounters::new(inner, &CounterOptions::new().lag(1));
    pmem.store(0, &[1; 8]);
    let first = pmem.sgroup().unwrap();
    pmem.store(64, &[1; 8]);
    assert_eq!(pmem.sgroup(), Err(FenceError::Poisoned));
    assert_eq!((pmem.scheck(first), pmem.lag()), (1, 2));
    assert_eq!(pmem.write_back(), Err(FenceError::Poisoned));
    pmem.get_ref().hook.0.store(false, Ordering::Relaxed);
    pmem.write_back().unwrap();
    assert_eq!((pmem.scheck(first), pmem.lag()), (0, 0));
}

/// Threads store to lines of each other, while one writes back. In the end, all groups are durable and all counters free.
#[test]
fn threads_share_counters() {
    let pmem = counters(&CounterOptions::new().counters(16).lines_max(4).lag(8));
    let (is_stopped, durable) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| pmem.write_back_every(Duration::from_micros(50), &is_stopped));
        let threads: Vec<_> = (0..2)
            .map(|seed| {
                let (pmem, durable) = (&pmem, &durable);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for number in 0..10_000 {
                        for _ in 0..random.u32(..4) {
                            pmem.store(random.u64(..64) * 64, &[1; 100]);
                        }
                        let durable = Arc::clone(durable);
                        pmem.on_durable(pmem.sgroup().unwrap(), move || {
                            _ = durable.fetch_add(1, Ordering::Relaxed)
                        });
                        if number % 100 == 0 {
                            pmem.write_back().unwrap();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        is_stopped.store(true, Ordering::Release);
        writer.join().unwrap().unwrap();
    });
    pmem.poll();
    assert_eq!((durable.load(Ordering::Relaxed), pmem.lag()), (20_000, 0));
    // All 16 counters are free.
    let groups: Vec<_> = (0..8)
        .map(|number| {
            pmem.store(number * 64, &[1; 8]);
            pmem.sgroup().unwrap()
        })
        .collect();
    assert!(groups.iter().all(|group| pmem.scheck(*group) == 1));
}

/// A group whose thread has ended is written back with the others, and its counter is used again.
#[test]
fn group_of_a_thread_that_ends_is_written_back() {
    let pmem = counters(&CounterOptions::new().counters(1));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pmem.store(0, &[1; 8]);
            pmem.store(64, &[1; 8]);
            pmem.flush(64, 64);
        });
        thread.join().unwrap();
    });
    // A scope ends before the values of its threads are dropped.
    while pmem.lag() == 0 {
        std::thread::yield_now();
    }
    // Another thread's fence says nothing about that group.
    pmem.fence().unwrap();
    let before = cost(&pmem);
    pmem.write_back().unwrap();
    assert_eq!(cost(&pmem), (before.0 + 2, before.1 + 1));
    pmem.store(0, &[2; 8]);
    assert_eq!(pmem.scheck(pmem.sgroup().unwrap()), 1, "a counter is free");
}

/// Panics at a store around the cache, because other threads could see such stores in another order, and on request at a flush.
#[derive(Debug, Default)]
struct Ordered {
    panics: AtomicBool,
}

impl Hook<Region> for Ordered {
    fn before_store_nt(&self, range: Range<u64>) {
        panic!("a store around the cache at {}", range.start);
    }
    fn before_flush(&self, _: Range<u64>) {
        assert!(!self.panics.load(Ordering::Relaxed), "the flush fails");
    }
}

fn ordered() -> Hooked<Region, Ordered> {
    Hooked::new(Region::anonymous(1 << 20).unwrap(), Ordered::default())
}

#[test]
fn stores_stay_in_the_order_of_the_program() {
    for options in [CounterOptions::new().counters(0), CounterOptions::new().lines_max(1)] {
        let pmem = LineCounters::new(ordered(), &options);
        pmem.store(0, &[1; 200]);
        pmem.try_store(256, &[1; 200]).unwrap();
        pmem.store_u64(640, 1);
        pmem.sgroup().unwrap();
        pmem.write_back().unwrap();
    }
}

#[test]
fn panic_loses_neither_groups_nor_actions() {
    let pmem = LineCounters::new(ordered(), &CounterOptions::new().in_order(true));
    pmem.store(0, &[1; 8]);
    let group = pmem.sgroup().unwrap();
    pmem.get_ref().hook.panics.store(true, Ordering::Relaxed);
    let fails = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
    assert!(fails(&|| drop(pmem.write_back())));
    assert_eq!((pmem.scheck(group), pmem.lag()), (1, 1));
    pmem.get_ref().hook.panics.store(false, Ordering::Relaxed);
    let is_done = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_done);
    pmem.on_durable(group, || panic!("an action fails"));
    pmem.on_durable(group, move || flag.store(true, Ordering::Relaxed));
    assert!(fails(&|| drop(pmem.write_back())));
    assert_eq!((pmem.scheck(group), pmem.poll()), (0, 1));
    assert!(is_done.load(Ordering::Relaxed));
}

#[test]
#[should_panic(expected = "do not fit")]
fn store_outside_the_region_is_refused_by_the_region() {
    counters(&CounterOptions::new()).store((1 << 20) - 4, &[1; 8]);
}
