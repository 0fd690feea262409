//! Leaves that removals leave empty leave the tree while it is in use.

use pm_btree::{KeyValue, ReadError, Store, StoreOptions, Table, WriteError};
use pm_core::{FenceError, Pmem, Region};
use pm_testkit::{AnyPmem, Hook, Hooked, any};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

type SimTable<K, V> = Table<K, V, AnyPmem<'static>>;

fn small() -> StoreOptions {
    StoreOptions::new().node_slots(4).extent_bytes(4096).empty_leaves(1)
}

fn format(bytes: u64, options: &StoreOptions) -> Store<AnyPmem<'static>> {
    Store::format(any(Region::anonymous(bytes).unwrap()), options).unwrap()
}

/// A copy of the region of an open store, as a kill would leave it, opened.
fn killed(store: &Store<AnyPmem<'static>>, options: &StoreOptions) -> Store<AnyPmem<'static>> {
    let mut bytes = vec![0; usize::try_from(store.stats().unwrap().pool_bytes).unwrap()];
    store.heap().pmem().load(0, &mut bytes);
    let region = Region::anonymous(bytes.len() as u64).unwrap();
    region.store(0, &bytes);
    Store::attach(any(region), options).unwrap()
}

/// A queue takes no space but that of its entries, however many have passed through it: by pops at either end, removals, batches, removals of ranges
/// and groups.
#[test]
fn queue_does_not_grow() {
    type Pop = fn(&Store<AnyPmem<'static>>, &SimTable<u64, u64>, u64);
    let pops: [Pop; 6] = [
        |_, queue, oldest| assert_eq!(queue.pop_first().unwrap().unwrap().0.value(), oldest),
        |_, queue, oldest| assert!(queue.remove(oldest).unwrap()),
        |store, queue, oldest| {
            let mut batch = store.batch();
            batch.remove(queue, oldest).unwrap();
            batch.commit().unwrap();
        },
        |_, queue, oldest| assert_eq!(queue.remove_range(..=oldest).unwrap(), 1),
        |_, queue, oldest| queue.remove_grouped(oldest).unwrap(),
        |_, queue, oldest| assert!(queue.take(oldest).unwrap().is_some()),
    ];
    for (number, pop) in pops.into_iter().enumerate() {
        let options = match number {
            4 => small().group_commits(16),
            _ => small(),
        };
        let mut store = format(256 << 10, &options);
        let mut at_start = 0;
        for round in 0..4 {
            let queue = store.table::<u64, u64>("queue").unwrap();
            for next in round * 3000..(round + 1) * 3000 {
                queue.insert(next, next).unwrap();
                if next >= 20 {
                    pop(&store, &queue, next - 20);
                }
                if next == 100 {
                    at_start = store.check().unwrap().leaves;
                }
            }
            let used_bytes = store.stats().unwrap().used_bytes;
            assert!(used_bytes < 16 << 10, "{used_bytes}");
            let keys: Vec<u64> = queue.range(..).map(|entry| entry.unwrap().0.value()).collect();
            assert!(keys.into_iter().eq((round + 1) * 3000 - 20..(round + 1) * 3000));
            let report = store.check().unwrap();
            assert!(
                report.is_sound() && report.leaves <= at_start + 8,
                "{report:?}, {at_start} at the start"
            );
            drop(queue);
            store = killed(&store, &options);
        }
        assert_eq!(store.new_indexes(), 1, "that of the catalogue");
    }
}

/// Lets another thread go on at one of the fences of this one.
#[derive(Debug, Default)]
struct Pause {
    /// The number of fences up to that one; 0 if there is none.
    fences: AtomicU64,
    is_reached: AtomicBool,
}

impl<R: Pmem> Hook<R> for Pause {
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        let is_of_this_thread = std::thread::current().name() != Some("other");
        let fences = self.fences.load(Ordering::Relaxed);
        if is_of_this_thread && fences != 0 {
            self.fences.store(fences - 1, Ordering::Relaxed);
            if fences == 1 {
                self.is_reached.store(true, Ordering::Release);
                std::thread::sleep(Duration::from_millis(30));
            }
        }
        region.fence()
    }
}

/// While a leaf is unlinked, another thread inserts keys of its range, by itself or in a batch: they are not lost in the leaf that has left the tree.
#[test]
fn changes_are_held_off_while_leaves_are_unlinked() {
    for (is_batch, fence) in [(false, 2), (false, 3), (true, 2), (true, 3)] {
        let pause = Arc::new(Pause::default());
        let region = Hooked::new(Region::anonymous(1 << 20).unwrap(), Arc::clone(&pause));
        let store = Store::format(any(region), &small()).unwrap();
        let table = store.table::<u64, u64>("t").unwrap();
        (1..12).for_each(|key| assert!(table.insert(key * 10, key).unwrap()));
        let removed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let insert = || {
                while !pause.is_reached.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let removed = removed.load(Ordering::Relaxed);
                if is_batch {
                    let mut batch = store.batch();
                    (removed + 1..removed + 3).for_each(|key| batch.insert(&table, key, key).unwrap());
                    batch.commit().unwrap();
                } else {
                    (removed + 1..removed + 3).for_each(|key| assert!(table.insert(key, key).unwrap()));
                }
            };
            std::thread::Builder::new().name("other".to_owned()).spawn_scoped(scope, insert).unwrap();
            // The first fence is that of the removal, and the others unlink the leaf if it is empty.
            for key in (30..80).step_by(10) {
                removed.store(key, Ordering::Relaxed);
                pause.fences.store(fence, Ordering::Relaxed);
                assert!(table.remove(key).unwrap());
                if pause.is_reached.load(Ordering::Relaxed) {
                    break;
                }
            }
            assert!(pause.is_reached.swap(true, Ordering::Release), "no leaf was unlinked");
        });
        let removed = removed.into_inner();
        let remaining = (1..12).map(|key| key * 10).filter(|key| !(30..=removed).contains(key));
        let mut expected: Vec<u64> = remaining.chain([removed + 1, removed + 2]).collect();
        expected.sort_unstable();
        let keys: Vec<u64> = table.range(..).map(|entry| entry.unwrap().0.value()).collect();
        assert_eq!(keys, expected, "{is_batch}, {fence}");
        assert!(expected.iter().all(|key| table.get(*key).unwrap().is_some()));
        assert!(store.check().unwrap().is_sound());
    }
}

/// Fences that take a millisecond.
struct SlowFences;

impl<R: Pmem> Hook<R> for SlowFences {
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        std::thread::sleep(Duration::from_millis(1));
        region.fence()
    }
}

/// Fences of a thread with this name, which do not end before the gate is open.
const GATED: &str = "gated";

#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    is_reached: AtomicBool,
}

impl<R: Pmem> Hook<R> for Gate {
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        if std::thread::current().name() == Some(GATED) {
            self.is_reached.store(true, Ordering::Relaxed);
            while !self.is_open.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        region.fence()
    }
}

/// Opens the gate, also when the test panics.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.is_open.store(true, Ordering::Relaxed);
    }
}

/// A queue does not grow either if fences take a millisecond, as in an ordinary file, and other threads always have a change in progress.
#[test]
fn queue_beside_slow_changes_does_not_grow() {
    let region = Hooked::new(Region::anonymous(1 << 20).unwrap(), Arc::new(SlowFences));
    let store = Store::format(any(region), &small()).unwrap();
    let queue = store.table::<u64, u64>("queue").unwrap();
    let other = store.table::<u64, u64>("other").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (other, is_over) = (&other, &is_over);
        for thread in 0..4 {
            scope.spawn(move || {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    other.insert(thread, number).unwrap();
                    number += 1;
                }
            });
        }
        for number in 0..1000 {
            assert!(queue.insert(number, number).unwrap());
            if number >= 5 {
                assert_eq!(queue.pop_first().unwrap().unwrap().0.value(), number - 5);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let report = store.check().unwrap();
    assert!(report.leaves < 100, "{} leaves", report.leaves);
    assert!(report.is_sound(), "{report:?}");
}

/// Leaves that could not be unlinked, because another thread had a change in progress all the time, leave the tree at the close.
#[test]
fn deferred_leaves_are_unlinked_at_a_close() {
    let region = Arc::new(Region::anonymous(1 << 20).unwrap());
    let gate = Arc::new(Gate::default());
    let hooked = Hooked::new(Arc::clone(&region), Arc::clone(&gate));
    let store = Store::format(any(hooked), &small()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    (0..80).for_each(|key| assert!(table.insert(key, key).unwrap()));
    std::thread::scope(|scope| {
        let change = || assert!(!table.insert(79, 0).unwrap());
        let _opens = Opens(Arc::clone(&gate));
        std::thread::Builder::new().name(GATED.to_owned()).spawn_scoped(scope, change).unwrap();
        while !gate.is_reached.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        (0..70).for_each(|key| assert!(table.remove(key).unwrap()));
    });
    let deferred = store.check().unwrap().leaves;
    assert!(deferred > 15, "{deferred} leaves");
    drop(table);
    store.close().unwrap();
    let store = Store::attach(any(region), &small()).unwrap();
    let report = store.check().unwrap();
    assert!(report.leaves < 12 && report.is_sound(), "{} of {deferred} leaves", report.leaves);
    assert_eq!(store.table_len("t").unwrap(), Some(10));
}

/// The last leaf is not unlinked and made again each time when entries are pushed and popped at its edge.
#[test]
fn leaf_at_the_edge_stays() {
    let store = format(1 << 20, &StoreOptions::new().empty_leaves(1));
    let stack = store.table::<u64, u64>("stack").unwrap();
    (0..61).for_each(|key| assert!(stack.insert(key, key).unwrap()));
    let before = store.stats().unwrap().used_bytes;
    for _ in 0..1000 {
        (61..63).for_each(|key| assert!(stack.insert(key, key).unwrap()));
        for key in (61..63).rev() {
            assert_eq!(stack.pop_last().unwrap().unwrap().0.value(), key);
        }
    }
    assert!(store.stats().unwrap().used_bytes <= before + 2 * 2048);
}

/// All leaves that one call leaves empty leave the tree with it, however many, and however they lie beside one another.
#[test]
fn leaves_that_one_batch_leaves_empty_are_unlinked() {
    const KEYS: u64 = 3_000;
    // Which keys stay: none, those of the last leaves, and one of 200.
    let stays: [fn(u64) -> bool; 3] = [|_| false, |key| key >= 2_980, |key| key % 200 == 7];
    for (number, stays) in stays.into_iter().enumerate() {
        for slots in [4, 12] {
            let options = small().node_slots(slots).empty_leaves(8).removal_batch(1 << 20);
            let store = format(4 << 20, &options);
            let table = store.table::<u64, u64>("t").unwrap();
            (0..KEYS).for_each(|key| assert!(table.insert(key, key).unwrap()));
            let before = store.check().unwrap().leaves;
            if number == 0 {
                assert_eq!(table.remove_range(..).unwrap(), KEYS);
            } else {
                let mut batch = store.batch();
                (0..KEYS).filter(|key| !stays(*key)).for_each(|key| batch.remove(&table, key).unwrap());
                batch.commit().unwrap();
            }
            let report = store.check().unwrap();
            assert!(report.leaves < 70, "{number}, {slots}: {} leaves of {before}", report.leaves);
            assert!(report.is_sound(), "{number}, {slots}: {report:?}");
            let keys: Vec<u64> = table.range(..).map(|entry| entry.unwrap().0.value()).collect();
            assert!(keys.into_iter().eq((0..KEYS).filter(|key| stays(*key))), "{number}, {slots}");
            let store = killed(&store, &options);
            assert!(store.check().unwrap().is_sound(), "{number}, {slots}");
        }
    }
}

/// Random changes of few keys in many leaves, against a map, with opens after kills and closes.
fn check_random(name: &str, key_of: impl Fn(u64) -> Vec<u8>, seed: u64) {
    let options = small();
    let mut store = format(1 << 20, &options);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for round in 0..30 {
        let table = store.table::<&[u8], &[u8]>(name).unwrap();
        // Rounds in which the tree grows, and rounds in which it shrinks.
        let removals = if round % 2 == 0 { 3 } else { 8 };
        for _ in 0..300 {
            let key = key_of(random.u64(..400));
            match random.u32(..10) {
                kind if kind >= removals => {
                    let value = vec![random.u8(..); random.usize(..40)];
                    assert_eq!(
                        table.insert(&key, &value).unwrap(),
                        model.insert(key, value).is_none(),
                        "seed {seed}"
                    );
                }
                0 => {
                    let popped = table.pop_first().unwrap().map(|(key, _)| key.value().to_vec());
                    assert_eq!(popped, model.pop_first().map(|(key, _)| key), "seed {seed}");
                }
                1 => {
                    let popped = table.pop_last().unwrap().map(|(key, _)| key.value().to_vec());
                    assert_eq!(popped, model.pop_last().map(|(key, _)| key), "seed {seed}");
                }
                2 => {
                    let end = key_of(random.u64(..400));
                    let (from, to) = if key <= end { (key, end) } else { (end, key) };
                    let to_remove: Vec<_> =
                        model.range(from.clone()..to.clone()).map(|(key, _)| key.clone()).take(30).collect();
                    let end = to_remove.last().cloned().unwrap_or(from.clone());
                    let removed = table.remove_range(from.as_slice()..=end.as_slice()).unwrap();
                    let before = model.len();
                    model.retain(|key, _| !(*key >= from && *key <= end));
                    assert_eq!(removed, (before - model.len()) as u64, "seed {seed}");
                }
                _ => assert_eq!(table.remove(&key).unwrap(), model.remove(&key).is_some(), "seed {seed}"),
            }
        }
        let entry = |entry: Result<KeyValue<&[u8], &[u8]>, ReadError>| {
            let (key, value) = entry.unwrap();
            (key.value().to_vec(), value.value().to_vec())
        };
        let found: Vec<_> = table.range(..).map(entry).collect();
        let expected: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(found, expected, "seed {seed}");
        let backwards: Vec<_> = table.range(..).rev().map(entry).collect();
        assert!(backwards.into_iter().rev().eq(expected), "seed {seed}");
        assert_eq!(table.len().unwrap(), model.len() as u64);
        let report = store.check().unwrap();
        assert!(report.is_sound(), "seed {seed}: {report:?}");
        drop(table);
        if random.bool() {
            store = killed(&store, &options);
            assert!(random.bool() || store.stats().is_ok());
        }
    }
    assert_eq!(store.heap().blocks(), store.blocks());
}

#[test]
fn random_changes_are_those_of_a_map() {
    for seed in 0..6 {
        check_random("short", |key| key.to_be_bytes()[6..].to_vec(), seed);
        check_random("long", |key| [b"a long prefix: ".as_slice(), &key.to_be_bytes()].concat(), seed);
    }
}

/// Inner nodes that were split leave words of moved leaves in their hint nodes, also those whose parent was split behind them. These words do not lead to leaves
/// that are unlinked, or to what is there afterwards, after kills in trees of many levels.
#[test]
fn moved_leaves_are_unlinked_after_kills() {
    for seed in 0..8 {
        let options = small();
        let mut store = format(2 << 20, &options);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = BTreeMap::new();
        let mut next = 0_u64;
        for round in 0..20 {
            let table = store.table::<u64, u64>("t").unwrap();
            // All leaves are visited, and can be unlinked.
            assert_eq!(table.len().unwrap(), model.len() as u64, "seed {seed}, round {round}");
            for _ in 0..random.u64(..1500) {
                assert!(table.insert(next * 2, next).unwrap());
                model.insert(next * 2, next);
                next += 1;
            }
            for _ in 0..random.u64(..1500) {
                let popped = if random.u8(..4) == 0 { table.pop_last() } else { table.pop_first() };
                if let Some((key, value)) = popped.unwrap() {
                    assert_eq!(model.remove(&key.value()), Some(value.value()));
                }
            }
            // Into the midst, too, where the leaves of other ranges were.
            for _ in 0..random.u64(..300) {
                let key = random.u64(..next.max(1) * 2) | 1;
                assert_eq!(table.insert(key, key).unwrap(), model.insert(key, key).is_none());
            }
            for (key, value) in &model {
                let found = table.get(*key).unwrap().map(|found| found.value());
                assert_eq!(found, Some(*value), "seed {seed}, round {round}, key {key}");
            }
            let found =
                table.range(..).map(|entry| entry.map(|(key, value)| (key.value(), value.value())).unwrap());
            assert!(found.eq(model.iter().map(|(key, value)| (*key, *value))), "seed {seed}, round {round}");
            drop(table);
            store = killed(&store, &options);
        }
    }
}

/// Threads push to, pop from and read one queue: each entry is popped once, those of a thread in their order, and readers find what is there.
#[test]
fn threads_share_a_queue() {
    const PUSHED: u64 = 4_000;
    for options in [small(), StoreOptions::new().empty_leaves(1), small().group_commits(8)] {
        let store = format(8 << 20, &options);
        let queue = store.table::<u64, u64>("queue").unwrap();
        // Never removed, in the midst of what is.
        (0..64).for_each(|key| assert!(queue.insert(key << 32 | 0x8000_0000, key).unwrap()));
        let (is_over, popped) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (store, queue, is_over, popped) = (&store, &queue, &is_over, &popped);
            let workers: Vec<_> = (0..4_u64)
                .map(|thread| {
                    scope.spawn(move || {
                        let own = |number: u64| (number % 64) << 32 | thread << 28 | number;
                        for number in 0..PUSHED {
                            assert!(queue.insert(own(number), number).unwrap());
                            assert_eq!(queue.get(own(number)).unwrap().unwrap().value(), number);
                            if number >= 50 {
                                match number % 3 {
                                    0 => assert!(queue.remove(own(number - 50)).unwrap()),
                                    1 => queue.remove_grouped(own(number - 50)).unwrap(),
                                    _ => {
                                        let mut batch = store.batch();
                                        batch.remove(queue, own(number - 50)).unwrap();
                                        batch.commit().unwrap();
                                    }
                                }
                                popped.fetch_add(1, Ordering::Relaxed);
                                assert!(queue.get(own(number - 50)).unwrap().is_none());
                            }
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let key = random.u64(..64);
                        assert_eq!(queue.get(key << 32 | 0x8000_0000).unwrap().unwrap().value(), key);
                        let keys: Vec<u64> = queue.range(..).map(|entry| entry.unwrap().0.value()).collect();
                        assert!(keys.is_sorted_by(|a, b| a < b));
                        assert_eq!(keys.iter().filter(|key| *key & 0x8000_0000 != 0).count(), 64);
                        let back = queue
                            .range(..)
                            .rev()
                            .filter(|entry| entry.as_ref().unwrap().0.value() & 0x8000_0000 != 0);
                        assert_eq!(back.count(), 64);
                    }
                });
            }
            for worker in workers {
                worker.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(popped.into_inner(), 4 * (PUSHED - 50));
        assert_eq!(queue.len().unwrap(), 4 * 50 + 64);
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
        drop(queue);
        let store = killed(&store, &options);
        assert_eq!(store.table_len("queue").unwrap(), Some(4 * 50 + 64));
        assert!(store.check().unwrap().is_sound());
    }
}

/// Pops at both ends and pushes by several threads: no entry is lost, and none is popped twice.
#[test]
fn ends_are_popped_by_threads() {
    let store = format(4 << 20, &small());
    let queue = store.table::<u64, u64>("queue").unwrap();
    let next = AtomicU64::new(1 << 32);
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let (queue, next) = (&queue, &next);
        let workers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut popped = Vec::new();
                    for _ in 0..4_000 {
                        let pushed = next.fetch_add(1, Ordering::Relaxed);
                        let key = if pushed % 5 == 0 { (1 << 33) - pushed } else { pushed };
                        assert!(queue.insert(key, pushed).unwrap());
                        let found = if thread % 2 == 0 { queue.pop_first() } else { queue.pop_last() };
                        popped.extend(found.unwrap().map(|(_, value)| value.value()));
                    }
                    popped
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    while let Some((_, value)) = queue.pop_first().unwrap() {
        all.push(value.value());
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(1 << 32..next.into_inner()));
    assert!(store.check().unwrap().is_sound() && queue.is_empty().unwrap());
}

/// Leaves that an earlier session has left empty are unlinked, too.
#[test]
fn leaves_of_earlier_sessions_are_unlinked() {
    let options = small().empty_leaves(u32::MAX);
    let store = format(1 << 20, &options);
    let table = store.table::<u64, u64>("t").unwrap();
    (0..1000).for_each(|key| assert!(table.insert(key, key).unwrap()));
    (0..1000).for_each(|key| assert!(key % 100 == 0 || table.remove(key).unwrap()));
    let before = store.check().unwrap().leaves;
    drop(table);
    let store = killed(&store, &small());
    let table = store.table::<u64, u64>("t").unwrap();
    assert_eq!(table.len().unwrap(), 10);
    (0..20).for_each(|number| assert_eq!(table.insert(5, number).unwrap(), number == 0));
    let report = store.check().unwrap();
    assert!(report.leaves < 60 && report.is_sound(), "{before}, then {report:?}");
    assert_eq!(table.len().unwrap(), 11);
    let full = |error: WriteError| matches!(error, WriteError::Full);
    assert!((0..).find_map(|key| table.insert(key, key).err()).is_some_and(full));
    assert!(store.check().unwrap().is_sound());
}
