//! A process whose two threads change a store is killed, again and again. After each kill the store has what its threads have reported, or with groups a
//! prefix of their changes.

use pm_btree::{Store, StoreOptions, Table};
use pm_testkit::run_and_kill;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variables for the child: the file of the store, and for each thread the number of its first operation.
const FILE: &str = "PM_BTREE_TEST_FILE";
const START: &str = "PM_BTREE_TEST_START";

const THREADS: u64 = 2;
/// The keys of a thread.
const KEYS: u64 = 2_000;

/// What the tables should hold, by key: for numbers, and for names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    numbers: BTreeMap<u64, u64>,
    names: BTreeMap<String, Vec<u8>>,
}

/// The operation with a number, of a thread. Each thread has keys of its own, between those of the other one.
struct Op {
    keys: [u64; 3],
    number: u64,
    kind: u32,
    value_len: usize,
}

impl Op {
    fn new(thread: u64, number: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(number * THREADS + thread);
        let first = random.u64(..KEYS);
        let key = |place: u64| (first + place * 701) % KEYS * THREADS + thread;
        Self {
            keys: [key(0), key(1), key(2)],
            number,
            kind: random.u32(..10),
            value_len: random.usize(..300),
        }
    }

    fn name(key: u64) -> String {
        format!("a name with the number {key:06}")
    }

    fn value(&self) -> Vec<u8> {
        vec![self.number.to_le_bytes()[0]; self.value_len]
    }

    fn apply(&self, store: &Store, numbers: &Table<u64, u64>, names: &Table<&str, &[u8]>) {
        let [first, second, third] = self.keys;
        match self.kind {
            0..4 => drop(numbers.insert(first, self.number).unwrap()),
            4..6 => drop(names.insert(&Self::name(first), &self.value()).unwrap()),
            6 => drop(numbers.remove(first).unwrap()),
            7 => drop(names.remove(&Self::name(first)).unwrap()),
            _ => {
                let mut batch = store.batch();
                batch.insert(numbers, first, self.number).unwrap();
                batch.remove(numbers, second).unwrap();
                batch.insert(names, &Self::name(third), &self.value()).unwrap();
                batch.commit().unwrap();
            }
        }
    }

    fn expect(&self, state: &mut State) {
        let [first, second, third] = self.keys;
        match self.kind {
            0..4 => drop(state.numbers.insert(first, self.number)),
            4..6 => drop(state.names.insert(Self::name(first), self.value())),
            6 => drop(state.numbers.remove(&first)),
            7 => drop(state.names.remove(&Self::name(first))),
            _ => {
                state.numbers.insert(first, self.number);
                state.numbers.remove(&second);
                state.names.insert(Self::name(third), self.value());
            }
        }
    }
}

/// In the child: runs operations without end. Reports each by a byte with the number of the thread.
fn run(path: &Path) -> ! {
    let starts: Vec<u64> =
        std::env::var(START).unwrap().split(',').map(|start| start.parse().unwrap()).collect();
    let store = Store::open(path, &StoreOptions::new()).unwrap();
    std::thread::scope(|scope| {
        for (thread, start) in (0..).zip(starts) {
            let store = &store;
            scope.spawn(move || {
                let (numbers, names) = (store.table("numbers").unwrap(), store.table("names").unwrap());
                for number in start.. {
                    Op::new(thread, number).apply(store, &numbers, &names);
                    // Standard error is not buffered.
                    std::io::stderr().write_all(&[u8::try_from(thread).unwrap()]).unwrap();
                }
            });
        }
    });
    unreachable!("the threads do not end");
}

fn read(store: &Store) -> State {
    let mut state = State::default();
    for entry in store.table::<u64, u64>("numbers").unwrap().range(..) {
        let (key, value) = entry.unwrap();
        state.numbers.insert(key.value(), value.value());
    }
    for entry in store.table::<&str, &[u8]>("names").unwrap().range(..) {
        let (key, value) = entry.unwrap();
        state.names.insert(key.value().to_owned(), value.value().to_vec());
    }
    state
}

/// The part of a state with the keys of a thread.
fn of_thread(state: &State, thread: u64) -> State {
    let is_own = |key: u64| key % THREADS == thread;
    let number_of = |name: &str| name[name.len() - 6..].parse().unwrap();
    let numbers = state.numbers.iter().filter(|(key, _)| is_own(**key));
    let names = state.names.iter().filter(|(name, _)| is_own(number_of(name)));
    State {
        numbers: numbers.map(|(key, value)| (*key, *value)).collect(),
        names: names.map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

/// With default options, where splits are rare and large, and with small nodes. `PM_KILLS` sets the number of kills of each.
#[test]
fn reported_changes_survive_kills() {
    if let Some(path) = std::env::var_os(FILE) {
        run(&PathBuf::from(path));
    }
    for options in [StoreOptions::new(), StoreOptions::new().node_slots(4)] {
        survive_kills(&options);
    }
}

fn survive_kills(options: &StoreOptions) {
    let kills = std::env::var("PM_KILLS").map_or(10, |count| count.parse().expect("a number"));
    // In memory: on a disk a thread would make a few changes only before it is killed.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    Store::create(&path, 64 << 20, options).unwrap().close().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut starts = [0; 2];
    let mut expected: [State; 2] = Default::default();
    for kill in 0..kills {
        let firsts = starts.each_ref().map(u64::to_string).join(",");
        let variables = [(FILE, path.as_os_str()), (START, OsStr::new(&firsts))];
        let time = Duration::from_millis(random.u64(3..60));
        let reports = run_and_kill("kill::reported_changes_survive_kills", &variables, time);

        let store = Store::open(&path, &StoreOptions::new().sweep_at_open(random.u64(..100))).unwrap();
        let found = read(&store);
        for (thread, (start, expected)) in (0..).zip(starts.iter_mut().zip(&mut expected)) {
            let reported = reports.iter().filter(|report| u64::from(**report) == thread).count() as u64;
            for number in *start..*start + reported {
                Op::new(thread, number).expect(expected);
            }
            *start += reported;
            // One operation may be done and not reported.
            let found = of_thread(&found, thread);
            if found != *expected {
                Op::new(thread, *start).expect(expected);
                *start += 1;
            }
            assert!(found == *expected, "kill {kill}: thread {thread} after {start} operations");
        }
        assert_eq!(store.table_len("numbers").unwrap(), Some(found.numbers.len() as u64));
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
        if random.bool() {
            store.close().unwrap();
        }
    }
    assert!(starts.iter().all(|start| *start > 100), "the threads have made {starts:?} changes");
}

/// The changes of a group.
const GROUP: u32 = 64;

/// In the child: two threads count, in groups. Each of their values has the other thread's count that was read before it. After every 100 counts, a thread makes
/// its count durable, and reports it.
fn count(path: &Path) -> ! {
    let store = Store::open(path, &StoreOptions::new().group_commits(GROUP)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let counts = store.table::<u64, (u64, u64)>("counts").unwrap();
                let count_of = |thread| counts.get(thread).unwrap().map_or(0, |value| value.value().0);
                for number in count_of(thread) + 1.. {
                    counts.insert_grouped(thread, (number, count_of(1 - thread))).unwrap();
                    if number % 100 == 0 {
                        store.sync().unwrap();
                        let report =
                            [[u8::try_from(thread).unwrap()].as_slice(), &number.to_le_bytes()].concat();
                        std::io::stderr().write_all(&report).unwrap();
                    }
                }
            });
        }
    });
    unreachable!("the threads do not end");
}

/// What a kill leaves of the counts is a prefix of both threads' changes, with all that were made durable. `PM_KILLS` sets the number of kills.
#[test]
fn killed_groups_leave_a_prefix() {
    if let Some(path) = std::env::var_os(FILE) {
        count(&PathBuf::from(path));
    }
    let kills = std::env::var("PM_KILLS").map_or(10, |count| count.parse().expect("a number"));
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    Store::create(&path, 64 << 20, &StoreOptions::new()).unwrap().close().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut durable = [0; 2];
    for kill in 0..kills {
        let time = Duration::from_millis(random.u64(5..150));
        let reports = run_and_kill("kill::killed_groups_leave_a_prefix", &[(FILE, path.as_os_str())], time);
        for report in reports.as_chunks::<9>().0 {
            let number = u64::from_le_bytes(report[1..].try_into().unwrap());
            let known: &mut u64 = &mut durable[usize::from(report[0])];
            *known = number.max(*known);
        }
        let store = Store::open(&path, &StoreOptions::new()).unwrap();
        let counts = store.table::<u64, (u64, u64)>("counts").unwrap();
        let found = [0, 1].map(|thread| counts.get(thread).unwrap().map_or((0, 0), |value| value.value()));
        for thread in [0, 1] {
            let (count, other) = found[thread];
            assert!(count >= durable[thread], "kill {kill}: {found:?}, durable {durable:?}");
            assert!(found[1 - thread].0 >= other, "kill {kill}: thread {thread} has seen more: {found:?}");
        }
        assert!(store.check().unwrap().is_sound());
    }
    assert!(durable.iter().all(|count| *count > 100), "the threads have made {durable:?} changes");
}

/// The threads that push and pop.
const QUEUE_THREADS: u64 = 4;

/// The environment variable for the child with the number of slots of a node.
const SLOTS: &str = "PM_BTREE_TEST_SLOTS";

/// Options with which leaves are unlinked often.
fn queue_options(slots: u32) -> StoreOptions {
    StoreOptions::new().node_slots(slots).empty_leaves(if slots == 4 { 1 } else { 3 })
}

/// In the child: four threads push to a queue and pop from both of its ends, so that it is long and short in turn. Each reports the keys that it has pushed and
/// popped.
fn push_and_pop(path: &Path) -> ! {
    let slots = std::env::var(SLOTS).unwrap().parse().unwrap();
    let store = Store::open(path, &queue_options(slots)).unwrap();
    let queue: Table<u64, u64> = store.table("queue").unwrap();
    // Leaves are unlinked when all were visited.
    queue.len().unwrap();
    let first = queue.last().unwrap().map_or(0, |(key, _)| key.value() / QUEUE_THREADS + 1);
    std::thread::scope(|scope| {
        for thread in 0..QUEUE_THREADS {
            let queue = &queue;
            scope.spawn(move || {
                let report = |is_popped: bool, key: u64| {
                    let report = [[u8::from(is_popped)].as_slice(), &key.to_le_bytes()].concat();
                    std::io::stderr().write_all(&report).unwrap();
                };
                for number in first.. {
                    if number / 200 % 2 == 0 || number % 3 == 0 {
                        let key = number * QUEUE_THREADS + thread;
                        assert!(queue.insert(key, !key).unwrap());
                        report(false, key);
                    }
                    if number / 200 % 2 == 1 {
                        let popped = if number % 8 == 0 { queue.pop_last() } else { queue.pop_first() };
                        if let Some((key, value)) = popped.unwrap() {
                            assert_eq!(value.value(), !key.value());
                            report(true, key.value());
                        }
                    }
                }
            });
        }
    });
    unreachable!("the threads do not end");
}

/// Pushed entries are in the queue until they are popped, however often the process is killed. `PM_KILLS` sets the number of kills of each.
#[test]
fn queue_survives_kills() {
    if let Some(path) = std::env::var_os(FILE) {
        push_and_pop(&PathBuf::from(path));
    }
    let kills = std::env::var("PM_KILLS").map_or(20, |count| count.parse().expect("a number"));
    for slots in [4, 62] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("store.pm");
        Store::create(&path, 16 << 20, &queue_options(slots)).unwrap().close().unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let (mut expected, mut reported) = (BTreeSet::new(), 0);
        for kill in 0..kills {
            let time = Duration::from_millis(random.u64(5..100));
            let slots = slots.to_string();
            let variables = [(FILE, path.as_os_str()), (SLOTS, OsStr::new(&slots))];
            let reports = run_and_kill("kill::queue_survives_kills", &variables, time);
            let text = String::from_utf8_lossy(&reports);
            assert!(!text.contains("panicked"), "{}", &text[text.find("panicked").unwrap_or(0)..]);
            let mut popped = BTreeSet::new();
            for report in reports.as_chunks::<9>().0 {
                reported += 1;
                let key = u64::from_le_bytes(report[1..].try_into().unwrap());
                match report[0] {
                    0 => assert!(expected.insert(key)),
                    _ => assert!(popped.insert(key), "kill {kill}: {key} is popped twice"),
                }
            }
            let store = Store::open(&path, &StoreOptions::new()).unwrap();
            let queue: Table<u64, u64> = store.table("queue").unwrap();
            let found: BTreeSet<u64> = queue.range(..).map(|entry| entry.unwrap().0.value()).collect();
            assert!(popped.is_disjoint(&found), "kill {kill}: popped entries are back");
            // An operation of each thread may be done and not reported: a push, or a pop of an entry whose push is not reported either.
            let is_left = |key: &&u64| !popped.contains(key);
            let unreported_pops =
                expected.iter().filter(is_left).filter(|key| !found.contains(key)).count() as u64;
            let unreported_pushes =
                found.iter().chain(&popped).filter(|key| !expected.contains(key)).count() as u64;
            assert!(
                unreported_pops <= QUEUE_THREADS && unreported_pushes <= QUEUE_THREADS,
                "kill {kill}: {unreported_pops} entries are lost, {unreported_pushes} are new"
            );
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{report:?}");
            assert!(
                report.leaves <= 50 + found.len() as u64,
                "{} leaves, {} entries",
                report.leaves,
                found.len()
            );
            expected = found;
            if random.bool() {
                drop(queue);
                store.close().unwrap();
            }
        }
        assert!(reported > 1_000, "{reported} pushes and pops");
    }
}
