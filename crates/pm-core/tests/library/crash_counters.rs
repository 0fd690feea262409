//! Crashes of programs with cache-line counters, under every model: what a count of zero promises.

use pm_core::Pmem;
use pm_core::counters::{CounterOptions, Group, LineCounters};
use pm_crashsim::{Crash, Explorer, Image, Model, Run, SimPmem};
use std::sync::Arc;

const LINES: u64 = 5;
const REGION_BYTES: u64 = LINES * 64;

type Counters = LineCounters<Arc<SimPmem>>;

/// A step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Stores a value to so many words from this one on.
    Store {
        word: u64,
        words: u64,
        value: u8,
    },
    /// The same, around the cache.
    StoreAround {
        word: u64,
        words: u64,
        value: u8,
    },
    /// Stores a word as a whole.
    StoreWord {
        word: u64,
        value: u8,
    },
    Flush {
        line: u64,
    },
    Fence,
    End,
    WriteBack,
}
use Step::{End, Fence, Flush, Store, StoreAround, StoreWord, WriteBack};

/// A step, and whether another thread takes it. The threads take turns.
type Turn = (bool, Step);

/// The words that a step stores to, and the value.
fn stored(step: Step) -> Option<(core::ops::Range<u64>, u8)> {
    match step {
        Store { word, words, value } | StoreAround { word, words, value } => {
            Some((word..word + words, value))
        }
        StoreWord { word, value } => Some((word..word + 1, value)),
        _ => None,
    }
}

fn take(counters: &Counters, step: Step) -> Option<Group> {
    let bytes = |words: u64, value: u8| vec![value; usize::try_from(words * 8).unwrap()];
    match step {
        Store { word, words, value } => counters.store(word * 8, &bytes(words, value)),
        StoreAround { word, words, value } => counters.store_nt(word * 8, &bytes(words, value)),
        StoreWord { word, value } => counters.store_u64(word * 8, u64::from_le_bytes([value; 8])),
        Flush { line } => counters.flush(line * 64, 64),
        Fence => counters.fence().unwrap(),
        End => return Some(counters.sgroup().unwrap()),
        WriteBack => counters.write_back().unwrap(),
    }
    None
}

/// The group of each store: the number of the `End` that its thread takes next, in the order of the `End`s.
fn groups(program: &[Turn]) -> Vec<Option<usize>> {
    let ends: Vec<usize> = (0..program.len()).filter(|at| program[*at].1 == End).collect();
    let group = |at: usize| ends.iter().position(|end| *end > at && program[*end].0 == program[at].0);
    (0..program.len()).map(group).collect()
}

/// Runs a program, and acknowledges each group as soon as its count is zero.
fn run(run: &Run<usize>, program: &[Turn], options: &CounterOptions) {
    let counters = Arc::new(LineCounters::new(Arc::clone(run.pmem()), options));
    let mut waiting: Vec<(usize, Group)> = Vec::new();
    let mut ended = 0;
    let mut in_order = 0;
    std::thread::scope(|scope| {
        let (ask, asked) = std::sync::mpsc::channel();
        let (answer, answers) = std::sync::mpsc::channel();
        let of_other = Arc::clone(&counters);
        scope.spawn(move || asked.into_iter().for_each(|step| answer.send(take(&of_other, step)).unwrap()));
        for (is_other, step) in program {
            let group = if *is_other {
                ask.send(*step).unwrap();
                answers.recv().unwrap()
            } else {
                take(&counters, *step)
            };
            if let Some(group) = group {
                waiting.push((ended, group));
                ended += 1;
            }
            let is_durable = |(_, group): &(usize, Group)| counters.scheck(*group) == 0;
            if *options == options.in_order(true) {
                assert!(waiting.is_sorted_by_key(|group| !is_durable(group)), "out of order");
            }
            for (number, _) in waiting.extract_if(.., |group| is_durable(group)) {
                run.ack(number);
                in_order += 1;
            }
        }
        drop(ask);
    });
    assert!(in_order <= ended);
}

/// Every word of a group that was acknowledged has the group's value, or a later one.
fn check(crash: &Crash<usize>, program: &[Turn], groups: &[Option<usize>]) -> Result<(), String> {
    for word in 0..REGION_BYTES / 8 {
        let history: Vec<(usize, u8)> = (0..program.len())
            .filter_map(|at| {
                let (words, value) = stored(program[at].1)?;
                words.contains(&word).then_some((at, value))
            })
            .collect();
        let is_durable =
            |(at, _): &(usize, u8)| groups[*at].is_some_and(|group| crash.acked().contains(&group));
        let mut allowed: Vec<u8> = history.iter().map(|(_, value)| *value).collect();
        match history.iter().rposition(is_durable) {
            Some(last) => drop(allowed.drain(..last)),
            None => allowed.push(0),
        }
        let found = crash.pmem().load_u64(word * 8).to_le_bytes();
        if !allowed.iter().any(|value| found == [*value; 8]) {
            return Err(format!(
                "word {word} is {found:?}, with {:?} durable; allowed are {allowed:?}",
                crash.acked()
            ));
        }
    }
    Ok(())
}

fn explore(explorer: &Explorer, program: &[Turn], options: &CounterOptions) {
    let groups = groups(program);
    let image = Image::zeroed(REGION_BYTES);
    explorer.check(&image, |run_of| run(run_of, program, options), |crash| check(crash, program, &groups));
}

fn store(word: u64, words: u64, value: u8) -> Turn {
    (false, Store { word, words, value })
}

/// Programs that need each part: shared lines of two threads, the program's own flushes and fences, no free counter, too many lines, stores around the cache.
fn programs() -> Vec<(Vec<Turn>, CounterOptions)> {
    let options = CounterOptions::new().counters(4).lines_max(3);
    let other = |turn: Turn| (true, turn.1);
    let end = (false, End);
    let write_back = (false, WriteBack);
    vec![
        (vec![store(0, 2, 1), end, store(9, 1, 2), end, write_back], options.lag(4)),
        (vec![store(0, 2, 1), end, store(1, 2, 2), end, write_back], options.lag(0)),
        // A line of two groups, in both orders.
        (vec![store(0, 2, 1), other(store(1, 2, 2)), other(end), end, other(write_back)], options.lag(4)),
        (
            vec![
                store(0, 2, 1),
                other(store(1, 2, 2)),
                store(0, 1, 3),
                end,
                write_back,
                other(end),
                write_back,
            ],
            options.lag(4),
        ),
        // Written back by the program, and stored to again.
        (
            vec![store(0, 1, 1), (false, Flush { line: 0 }), store(1, 1, 2), (false, Fence), end, write_back],
            options.lag(4),
        ),
        (vec![store(0, 1, 1), (false, Flush { line: 0 }), end, other(write_back)], options.lag(4)),
        (vec![store(0, 1, 1), (false, Flush { line: 0 }), (false, Fence), end], options.lag(4)),
        // No counter.
        (
            vec![store(0, 1, 1), (false, StoreWord { word: 9, value: 2 }), end],
            CounterOptions::new().counters(0),
        ),
        // Too many lines.
        (
            vec![
                store(0, 17, 1),
                store(24, 9, 2),
                (false, StoreWord { word: 33, value: 3 }),
                end,
                write_back,
            ],
            options.lag(4),
        ),
        (
            vec![(false, StoreAround { word: 0, words: 9, value: 1 }), store(8, 1, 2), end, write_back],
            options.lag(4),
        ),
        (vec![store(0, 1, 1), end, store(9, 1, 2), end, store(17, 1, 3), end], options.lag(1).in_order(true)),
    ]
}

#[test]
fn group_with_count_zero_is_durable() {
    for (program, options) in programs() {
        for model in Model::ALL {
            explore(&Explorer::new(model).kills(1), &program, &options);
        }
    }
}

/// Each flush and fence of the counters is needed by one of the programs.
#[test]
fn flushes_and_fences_are_needed() {
    let mut redundant: Option<Vec<String>> = None;
    for (program, options) in programs() {
        let groups = groups(&program);
        let found = Explorer::new(Model::Chunk8)
            .redundant_sites(
                &Image::zeroed(REGION_BYTES),
                |of| run(of, &program, &options),
                |crash| check(crash, &program, &groups),
            )
            .unwrap();
        let found = found.into_iter().map(|site| site.location.to_string());
        let found: Vec<String> = found.filter(|site| site.contains("/src/counters/")).collect();
        println!("{program:?}: not needed are {found:?}");
        redundant =
            Some(redundant.map_or(found.clone(), |known| {
                known.into_iter().filter(|site| found.contains(site)).collect()
            }));
    }
    assert_eq!(redundant.unwrap(), Vec::<String>::new());
}

/// Random programs. `PM_CRASH_SEQUENCES` sets their number.
#[test]
fn random_groups_with_count_zero_are_durable() {
    let count = std::env::var("PM_CRASH_SEQUENCES").map_or(60, |count| count.parse().expect("a number"));
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = CounterOptions::new()
            .counters(random.u16(..4))
            .lines_max(random.u32(1..4))
            .lag(random.usize(..4))
            .in_order(random.bool());
        let program: Vec<Turn> = (1..=14)
            .map(|value| {
                let word = random.u64(..LINES * 8);
                let words = random.u64(1..=(LINES * 8 - word).min(10));
                let step = match random.u32(..12) {
                    0..5 => Store { word, words, value },
                    5 => StoreAround { word, words, value },
                    6 => StoreWord { word, value },
                    7 => Flush { line: random.u64(..LINES) },
                    8 => Fence,
                    9 | 10 => End,
                    _ => WriteBack,
                };
                (random.bool(), step)
            })
            .collect();
        let model = random.choice(Model::ALL).unwrap();
        let explorer = Explorer::new(model).choices_per_point(64).kills(random.usize(..2));
        explore(&explorer, &program, &options);
    }
}

/// A thread ends without ending its group, which no counter makes durable; then another group is durable, and counts say so in order.
#[test]
fn group_of_a_thread_that_ends_is_durable_before_later_groups() {
    let in_order = CounterOptions::new().in_order(true);
    for (options, is_around) in [
        (in_order, false),
        (in_order, true),
        (in_order.lines_max(1), false),
        (in_order.counters(0), false),
        (in_order.counters(1), false),
    ] {
        let operation = |run: &Run<()>| {
            let counters = Arc::new(Counters::new(Arc::clone(run.pmem()), &options));
            let other = Arc::clone(&counters);
            let thread = std::thread::spawn(move || {
                for line in 0..3 {
                    match is_around {
                        true => other.store_nt(64 * line, &7_u64.to_le_bytes()),
                        false => other.store_u64(64 * line, 7),
                    }
                }
            });
            thread.join().unwrap();
            counters.store_u64(4 * 64, 9);
            let group = counters.sgroup().unwrap();
            counters.write_back().unwrap();
            assert_eq!(counters.scheck(group), 0);
            run.ack(());
        };
        let check = |crash: &Crash<()>| {
            let words = [0, 1, 2, 4].map(|line| crash.pmem().load_u64(64 * line));
            match crash.acked().is_empty() || words == [7, 7, 7, 9] {
                true => Ok(()),
                false => Err(format!("{words:?}")),
            }
        };
        Explorer::default().check(&Image::zeroed(REGION_BYTES), operation, check);
    }
}

/// The destructor of a thread-local value stores after the thread's groups are gone: that is durable when the thread has ended.
#[test]
fn destructors_of_threads_store() {
    struct Storing(Arc<Counters>);
    impl Drop for Storing {
        fn drop(&mut self) {
            self.0.store_u64(0, 7);
            self.0.store_nt(64, &7_u64.to_le_bytes());
            self.0.sgroup().unwrap();
        }
    }
    thread_local! {
        static VALUE: std::cell::RefCell<Option<Storing>> = const { std::cell::RefCell::new(None) };
    }
    let operation = |run: &Run<()>| {
        let counters = Arc::new(Counters::new(Arc::clone(run.pmem()), &CounterOptions::new()));
        std::thread::spawn(move || {
            // Thread-local values are dropped in the reverse order of their first use, so this one is dropped last.
            VALUE.with_borrow_mut(|value| *value = Some(Storing(Arc::clone(&counters))));
            counters.store_u64(128, 7);
        })
        .join()
        .unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let words = [0, 64].map(|at| crash.pmem().load_u64(at));
        if crash.acked().is_empty() || words == [7, 7] { Ok(()) } else { Err(format!("{words:?}")) }
    };
    Explorer::default().check(&Image::zeroed(REGION_BYTES), operation, check);
}
