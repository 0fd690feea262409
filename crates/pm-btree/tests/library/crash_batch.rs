//! Crashes of batches over two tables, in small nodes: after each crash, and after each kill that is followed by a crash, a batch has changed everything
//! or nothing. And of groups, of which a crash leaves a prefix.

use pm_alloc::HeapOptions;
use pm_btree::{OpenError, ReadError, Store, StoreOptions, Table, TableError, WriteError};
use pm_core::{PoolOptions, Uuid};
use pm_crashsim::{Durability, Explorer, Model, Oracle, Sequences, SimPmem, Subject};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

const REGION_BYTES: u64 = 128 << 10;

/// A table of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum In {
    /// 8-byte keys and values.
    Words,
    /// Long keys with a common prefix of more than eight bytes, and values in records.
    Names,
}
use In::{Names, Words};

/// An operation of a batch: the table, the key, and the new value, 0 to remove the key.
type Change = (In, u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Batch(&'static [Change]),
    /// A change by itself.
    Single(Change),
    /// A change that waits for its group, which has room for two.
    Grouped(Change),
    /// Makes the group durable.
    Sync,
}

/// A store with two tables, both with these keys.
#[derive(Clone, Copy, Debug)]
struct TwoTables {
    keys: &'static [u8],
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the table: {0}")]
    Table(#[from] TableError),
    #[error("{0}")]
    Unsound(String),
}

type SimStore = Store<AnyPmem<'static>>;

fn options() -> StoreOptions {
    // Fixed numbers, so that a crash has the same name in each run.
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let heap = HeapOptions::new().seed(7).pool(pool).lanes(1);
    StoreOptions::new()
        .heap(heap)
        .node_slots(4)
        .extent_bytes(4096)
        .sweep_at_open(0)
        .changes_per_epoch(2)
        .group_commits(2)
}

fn name(key: u8) -> Vec<u8> {
    [b"a long prefix: ".as_slice(), &[key]].concat()
}

struct Tables {
    words: Table<u64, u64, AnyPmem<'static>>,
    names: Table<&'static [u8], &'static [u8], AnyPmem<'static>>,
}

impl Tables {
    fn open(store: &SimStore) -> Result<Self, TableError> {
        Ok(Self { words: store.table("words")?, names: store.table("names")? })
    }

    fn change(&self, (table, key, value): Change) -> Result<(), WriteError> {
        match (table, value) {
            (Words, 0) => self.words.remove(key.into())?,
            (Words, value) => self.words.insert(key.into(), value.into())?,
            (Names, 0) => self.names.remove(&name(key))?,
            (Names, value) => self.names.insert(&name(key), &[value; 3])?,
        };
        Ok(())
    }

    fn change_grouped(&self, (table, key, value): Change) -> Result<(), WriteError> {
        match (table, value) {
            (Words, 0) => self.words.remove_grouped(key.into()),
            (Words, value) => self.words.insert_grouped(key.into(), value.into()),
            (Names, 0) => self.names.remove_grouped(&name(key)),
            (Names, value) => self.names.insert_grouped(&name(key), &[value; 3]),
        }
    }

    fn commit(&self, store: &SimStore, changes: &[Change]) -> Result<(), WriteError> {
        let mut batch = store.batch();
        for (table, key, value) in changes.iter().copied() {
            match (table, value) {
                (Words, 0) => batch.remove(&self.words, key.into())?,
                (Words, value) => batch.insert(&self.words, key.into(), value.into())?,
                (Names, 0) => batch.remove(&self.names, &name(key))?,
                (Names, value) => batch.insert(&self.names, &name(key), &[value; 3])?,
            }
        }
        batch.commit()
    }
}

impl Subject for TwoTables {
    type Op = Op;
    type State = BTreeMap<(In, u8), u8>;
    type Store = SimStore;
    type Error = Failure;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<SimStore, Failure> {
        let store = Store::format(any(pmem), &options())?;
        let tables = Tables::open(&store)?;
        for key in self.keys {
            tables.change((Words, *key, *key))?;
            tables.change((Names, *key, *key))?;
        }
        drop(tables);
        Ok(store)
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<SimStore, Failure> {
        Ok(Store::attach(any(pmem), &options())?)
    }

    fn apply(&self, store: &mut SimStore, op: &Op) -> Result<(), Failure> {
        let tables = Tables::open(store)?;
        match op {
            Op::Batch(changes) => tables.commit(store, changes)?,
            Op::Single(change) => tables.change(*change)?,
            Op::Grouped(change) => tables.change_grouped(*change)?,
            Op::Sync => store.sync()?,
        }
        Ok(())
    }

    fn is_sync(&self, op: &Op) -> bool {
        !matches!(op, Op::Grouped(_))
    }

    fn observe(&self, store: &SimStore) -> Result<BTreeMap<(In, u8), u8>, Failure> {
        let report = store.check().unwrap();
        if !report.is_sound() {
            return Err(Failure::Unsound(format!("{report:?}")));
        }
        if store.heap().blocks() != store.blocks() {
            return Err(Failure::Unsound("blocks are leaked".to_owned()));
        }
        let tables = Tables::open(store)?;
        let mut map = BTreeMap::new();
        for entry in tables.words.range(..) {
            let (key, value) = entry?;
            map.insert((Words, u8::try_from(key.value()).unwrap()), u8::try_from(value.value()).unwrap());
        }
        for entry in tables.names.range(..) {
            let (key, value) = entry?;
            let [first, _, last] = *value.value() else {
                return Err(Failure::Unsound(format!("torn value of {:?}", key.value())));
            };
            assert_eq!(first, last, "torn value");
            map.insert((Names, *key.value().last().unwrap()), first);
        }
        let len = tables.words.len()? + tables.names.len()?;
        if len == map.len() as u64 {
            Ok(map)
        } else {
            Err(Failure::Unsound(format!("length {len} of {map:?}")))
        }
    }
}

impl Oracle for TwoTables {
    fn initial(&self) -> BTreeMap<(In, u8), u8> {
        self.keys.iter().flat_map(|key| [((Words, *key), *key), ((Names, *key), *key)]).collect()
    }

    fn expect(&self, map: &mut BTreeMap<(In, u8), u8>, op: &Op) {
        let mut change = |(table, key, value): Change| match value {
            0 => drop(map.remove(&(table, key))),
            value => drop(map.insert((table, key), value)),
        };
        match op {
            Op::Batch(changes) => changes.iter().copied().for_each(&mut change),
            Op::Single(one) | Op::Grouped(one) => change(*one),
            Op::Sync => {}
        }
    }
}

/// Batches that need no split in tables with two keys, 3 and 5: each leaf has two free slots.
const FITTING: [Op; 5] = [
    Op::Batch(&[(Words, 4, 40), (Names, 4, 40)]),
    Op::Batch(&[(Words, 3, 30), (Words, 5, 0), (Names, 3, 0), (Names, 5, 50)]),
    Op::Batch(&[(Words, 3, 0), (Words, 4, 40), (Names, 9, 0), (Names, 5, 50)]),
    Op::Batch(&[(Words, 9, 90), (Words, 9, 0), (Words, 3, 30), (Names, 2, 20)]),
    Op::Batch(&[(Names, 3, 0), (Names, 5, 0)]),
];

/// Batches for which leaves are split, by the last two into three.
const SPLITTING: [Op; 4] = [
    Op::Batch(&[(Words, 4, 40), (Words, 3, 30), (Words, 5, 0)]),
    Op::Batch(&[(Names, 6, 60), (Names, 7, 70), (Words, 5, 50)]),
    Op::Batch(&[(Words, 2, 20), (Words, 6, 60), (Words, 7, 70), (Words, 8, 80), (Words, 9, 90)]),
    Op::Batch(&[(Names, 1, 10), (Names, 2, 20), (Names, 4, 40), (Names, 6, 60), (Names, 7, 70)]),
];

/// Changes that follow a batch, and reuse slots and records.
const SINGLES: [Op; 4] = [
    Op::Single((Words, 3, 31)),
    Op::Single((Words, 5, 0)),
    Op::Single((Names, 5, 51)),
    Op::Single((Names, 3, 0)),
];

/// The bound of choices at each crash point: `PM_CRASH_CHOICES`, by default enough for batches without splits. Tests of longer runs try a
/// fixed part of it.
fn choices_per_point() -> u64 {
    std::env::var("PM_CRASH_CHOICES").map_or(20_000, |count| count.parse().expect("a number"))
}

/// Every crash of each batch. What a recovery from it leaves is crashed at so many choices a point.
fn check_exhaustively(ops: &[Op], model: Model, nested_choices: u64) {
    let explorer = Explorer::new(model)
        .choices_per_point(choices_per_point())
        .crashes(1)
        .nested_choices_per_point(nested_choices);
    let sequences =
        Sequences::new(TwoTables { keys: &[3, 5] }, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0);
    for op in ops {
        let coverage = sequences.check(&[*op]);
        assert!(coverage.levels[0].is_exhaustive, "{model}: {coverage}");
        assert!(coverage.after_recovery.is_exhaustive || nested_choices == 1, "{model}: {coverage}");
    }
}

#[test]
fn batch_is_atomic() {
    check_exhaustively(&FITTING[..1], Model::Px86Line, if crate::is_deep() { 256 } else { 1 });
    check_exhaustively(&FITTING[1..], Model::Px86Line, 1);
}

#[test]
fn batch_is_atomic_with_durable_caches() {
    check_exhaustively(&[&FITTING[..], &SPLITTING[..3]].concat(), Model::Eadr, 256);
}

#[test]
fn batch_is_atomic_on_pages() {
    check_exhaustively(&FITTING, Model::Page, 1);
}

/// A split alone has more choices than can all be tried.
#[test]
fn batch_that_splits_leaves_is_atomic() {
    for model in [Model::Px86Line, Model::Page] {
        let part = if crate::is_deep() { 80 } else { 400 };
        let explorer = Explorer::new(model).choices_per_point(choices_per_point() / part).crashes(1);
        let sequences = Sequences::new(TwoTables { keys: &[3, 5] }, REGION_BYTES).unwrap();
        sequences.explorer(explorer).crash_onward(0).check_all(&SPLITTING, 1);
    }
}

/// Killed everywhere; a second process opens the store, goes on, and is crashed: what it has seen stays.
#[test]
fn killed_batch_is_atomic() {
    let explorer =
        Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(choices_per_point() / 2_500);
    let sequences = Sequences::new(TwoTables { keys: &[3, 5] }, REGION_BYTES).unwrap().explorer(explorer);
    sequences.crash_onward(0).check_all(&[&FITTING[..], &SPLITTING[..1]].concat(), 1);
}

/// A batch and another operation, which reuses what the batch has left, and crashes inside recovery.
#[test]
fn operations_after_a_batch_are_atomic() {
    let explorer = Explorer::new(Model::Px86Line)
        .choices_per_point(choices_per_point() / 5_000)
        .nested_choices_per_point(1);
    let sequences =
        Sequences::new(TwoTables { keys: &[3, 5] }, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0);
    for first in FITTING {
        for second in [&FITTING[..3], &SINGLES].concat() {
            sequences.check(&[first, second]);
        }
    }
}

/// Random sequences of batches and single changes. `PM_CRASH_SEQUENCES` sets their number.
#[test]
fn random_batches_are_atomic() {
    let count = std::env::var("PM_CRASH_SEQUENCES").map_or(5, |count| count.parse().expect("a number"));
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(6).nested_choices_per_point(1);
    let sequences = Sequences::new(TwoTables { keys: &[2, 3, 5, 7, 11] }, REGION_BYTES)
        .unwrap()
        .explorer(explorer)
        .crash_onward(0);
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut change = || -> Change {
            let table = if random.bool() { Words } else { Names };
            (table, random.u8(..16), if random.u32(..3) == 0 { 0 } else { random.u8(1..) })
        };
        let ops: Vec<Op> = (0..5)
            .map(|number| match number % 2 {
                0 => Op::Batch(Vec::leak((0..4).map(|_| change()).collect())),
                _ => Op::Single(change()),
            })
            .collect();
        sequences.check(&ops);
    }
}

/// Changes of groups that replace, remove and insert.
const GROUPED: [Op; 4] = [
    Op::Grouped((Words, 4, 40)),
    Op::Grouped((Words, 3, 0)),
    Op::Grouped((Names, 3, 30)),
    Op::Grouped((Names, 5, 0)),
];

fn groups(explorer: Explorer, keys: &'static [u8]) -> Sequences<TwoTables> {
    let sequences = Sequences::new(TwoTables { keys }, REGION_BYTES).unwrap().explorer(explorer);
    sequences.durability(Durability::Buffered).crash_onward(0)
}

/// The third change commits the two before it, and a change by itself or a sync what is left.
#[test]
fn crash_leaves_a_prefix_of_groups() {
    for model in [Model::Px86Line, Model::Eadr, Model::Page] {
        let explorer = Explorer::new(model)
            .crashes(1)
            .choices_per_point(choices_per_point() / 200)
            .nested_choices_per_point(1);
        let sequences = groups(explorer, &[3, 5]);
        for (number, last) in [Op::Sync, SINGLES[0], FITTING[0]].into_iter().enumerate() {
            let mut ops = GROUPED;
            ops.rotate_left(number);
            sequences.check(&[&ops[..3], &[last]].concat());
        }
    }
}

/// Killed everywhere; a second process opens the store, goes on, and is crashed.
#[test]
fn killed_groups_leave_a_prefix() {
    let explorer =
        Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(choices_per_point() / 2_500);
    groups(explorer, &[3, 5]).check(&[&GROUPED[..3], &[Op::Sync]].concat());
}

/// Random sequences of all kinds of changes. `PM_CRASH_SEQUENCES` sets their number.
#[test]
fn random_groups_leave_a_prefix() {
    let count = std::env::var("PM_CRASH_SEQUENCES").map_or(5, |count| count.parse().expect("a number"));
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(6).nested_choices_per_point(1);
    let sequences = groups(explorer, &[2, 3, 5, 7, 11]);
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed);
        let ops: Vec<Op> = (0..8)
            .map(|_| {
                let table = if random.bool() { Words } else { Names };
                let change = (table, random.u8(..16), if random.u32(..3) == 0 { 0 } else { random.u8(1..) });
                match random.u32(..10) {
                    0 => Op::Sync,
                    1 => Op::Single(change),
                    2 => Op::Batch(Vec::leak(vec![change])),
                    _ => Op::Grouped(change),
                }
            })
            .collect();
        sequences.check(&ops);
    }
}
