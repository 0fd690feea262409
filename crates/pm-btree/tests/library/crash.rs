//! Crashes of every operation, in small nodes: after each crash, and after each kill that is followed by a crash, the store opens, holds all that
//! was acknowledged, and goes on.

use pm_alloc::HeapOptions;
use pm_btree::{Key, OpenError, ReadError, Store, StoreOptions, Table, Value, WriteError};
use pm_core::{PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Model, Oracle, Run, Sequences, SimPmem, Subject};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

const REGION_BYTES: u64 = 96 << 10;

/// A change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Puts the key, with the value of this number.
    Put(u8, u8),
    /// Removes the key.
    Remove(u8),
    /// Changes the value of the key from the first number to the second, of which 0 is none, if it has the first one.
    Swap(u8, u8, u8),
    /// Removes the first entry.
    PopFirst,
    /// Removes the last entry.
    PopLast,
    /// Removes the entries with odd keys.
    RetainEven,
    /// Unlinks empty leaves.
    Compact,
}

/// The keys and values of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// 8-byte keys and values.
    Inline,
    /// 8-byte keys, values of 24 bytes in records.
    Records,
    /// Long keys with a common prefix of more than eight bytes.
    LongKeys,
    /// The same keys, with values so long that an extent has few records, and these are reused soon.
    LongRecords,
    /// The same keys, with values of different [lengths](length): space is used for records of one length, and then of another.
    Lengths,
}

/// The length of a value of [`Shape::Lengths`]: in an extent of 4 KiB there are 31 such records, or four, or it has a block of its own.
fn length(value: u8) -> usize {
    [40, 900, 1500, 3000][usize::from(value % 4)]
}

/// The length of the values of [`Shape::LongRecords`].
const LONG: usize = 900;

/// A store with one table of a few entries.
#[derive(Clone, Copy, Debug)]
struct Small {
    shape: Shape,
    /// The keys of the table at the start.
    keys: &'static [u8],
    /// [`StoreOptions::empty_leaves`].
    empty_leaves: u32,
}

/// Where an operation or an open can fail.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the table: {0}")]
    Table(#[from] pm_btree::TableError),
    #[error("{0}")]
    Unsound(String),
}

type SimStore = Store<AnyPmem<'static>>;
type SimTable = Table<&'static [u8], &'static [u8], AnyPmem<'static>>;

impl Small {
    fn options(&self) -> StoreOptions {
        // Fixed numbers, so that a crash has the same name in each run.
        let heap = HeapOptions::new()
            .seed(7)
            .pool(PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0))
            .lanes(1);
        // Either every leaf is visited at the open, or when an operation needs it; then no operation unlinks leaves.
        let swept = if self.shape == Shape::Records { 0 } else { 256 };
        StoreOptions::new()
            .heap(heap)
            .node_slots(4)
            .extent_bytes(4096)
            .sweep_at_open(swept)
            .changes_per_epoch(2)
            .empty_leaves(self.empty_leaves)
    }

    fn put(&self, store: &SimStore, key: u8, value: u8) -> Result<(), Failure> {
        match self.shape {
            Shape::Inline => {
                store.table::<u64, u64>("t")?.insert(key.into(), value.into())?;
            }
            Shape::Records => {
                store.table::<u64, [u8; 24]>("t")?.insert(key.into(), [value; 24])?;
            }
            Shape::LongRecords => {
                self.long(store)?.insert(&long_key(key), &[value; LONG])?;
            }
            Shape::Lengths => {
                self.long(store)?.insert(&long_key(key), &vec![value; length(value)])?;
            }
            Shape::LongKeys => {
                self.long(store)?.insert(&long_key(key), &[value; 3])?;
            }
        }
        Ok(())
    }

    fn remove(&self, store: &SimStore, key: u8) -> Result<(), Failure> {
        match self.shape {
            Shape::Inline => {
                store.table::<u64, u64>("t")?.remove(key.into())?;
            }
            Shape::Records => {
                store.table::<u64, [u8; 24]>("t")?.remove(key.into())?;
            }
            Shape::LongKeys | Shape::LongRecords | Shape::Lengths => {
                self.long(store)?.remove(&long_key(key))?;
            }
        }
        Ok(())
    }

    /// An operation that depends on the table's contents.
    fn change(&self, store: &SimStore, op: Op) -> Result<(), Failure> {
        match self.shape {
            Shape::Inline => {
                let table = store.table::<u64, u64>("t")?;
                change(&table, op, u64::from, byte, u64::from)
            }
            Shape::Records => {
                let table = store.table::<u64, [u8; 24]>("t")?;
                change(&table, op, u64::from, byte, |value| [value; 24])
            }
            Shape::LongKeys | Shape::LongRecords | Shape::Lengths => {
                let keys: Vec<Vec<u8>> = (0..=u8::MAX).map(long_key).collect();
                let values: Vec<[u8; 3]> = (0..=u8::MAX).map(|value| [value; 3]).collect();
                let last = |key: &[u8]| *key.last().expect("a long key");
                change(
                    &self.long(store)?,
                    op,
                    |key| &keys[usize::from(key)],
                    last,
                    |value| &values[usize::from(value)],
                )
            }
        }
    }

    fn long(&self, store: &SimStore) -> Result<SimTable, Failure> {
        Ok(store.table("t")?)
    }

    fn read(&self, store: &SimStore) -> Result<BTreeMap<u8, u8>, Failure> {
        let mut map = BTreeMap::new();
        match self.shape {
            Shape::Inline => {
                for entry in store.table::<u64, u64>("t")?.range(..) {
                    let (key, value) = entry?;
                    map.insert(byte(key.value()), byte(value.value()));
                }
            }
            Shape::Records => {
                for entry in store.table::<u64, [u8; 24]>("t")?.range(..) {
                    let (key, value) = entry?;
                    let [first, rest @ ..] = value.value();
                    if rest.iter().any(|byte| *byte != first) {
                        return Err(Failure::Unsound(format!("torn value {:?}", value.value())));
                    }
                    map.insert(byte(key.value()), first);
                }
            }
            Shape::LongKeys | Shape::LongRecords | Shape::Lengths => {
                for entry in self.long(store)?.range(..) {
                    let (key, value) = entry?;
                    let is_length =
                        self.shape != Shape::Lengths || value.value().len() == length(value.value()[0]);
                    if !is_length || value.value().iter().any(|byte| *byte != value.value()[0]) {
                        return Err(Failure::Unsound(format!("torn value of {:?}", key.value())));
                    }
                    map.insert(*key.value().last().expect("a long key"), value.value()[0]);
                }
            }
        }
        Ok(map)
    }
}

fn change<'v, K: Key, V: Value>(
    table: &Table<K, V, AnyPmem<'static>>,
    op: Op,
    key_of: impl Fn(u8) -> K::View<'v>,
    number_of: impl Fn(K::View<'_>) -> u8,
    value_of: impl Fn(u8) -> V::View<'v>,
) -> Result<(), Failure> {
    match op {
        Op::Swap(key, old, new) => {
            let value = |number| (number != 0).then(|| value_of(number));
            drop(table.compare_and_swap(key_of(key), value(old), value(new))?);
        }
        Op::PopFirst => drop(table.pop_first()?),
        Op::PopLast => drop(table.pop_last()?),
        Op::RetainEven => {
            table.retain(|key, _| number_of(key).is_multiple_of(2))?;
        }
        Op::Put(..) | Op::Remove(_) | Op::Compact => unreachable!("does not depend on the contents"),
    }
    Ok(())
}

fn byte(word: u64) -> u8 {
    u8::try_from(word).expect("a small number")
}

fn long_key(key: u8) -> Vec<u8> {
    [b"a long prefix: ".as_slice(), &[key]].concat()
}

impl Subject for Small {
    type Op = Op;
    type State = BTreeMap<u8, u8>;
    type Store = SimStore;
    type Error = Failure;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<SimStore, Failure> {
        let store = Store::format(any(pmem), &self.options())?;
        for key in self.keys {
            self.put(&store, *key, *key)?;
        }
        Ok(store)
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<SimStore, Failure> {
        Ok(Store::attach(any(pmem), &self.options())?)
    }

    fn apply(&self, store: &mut SimStore, op: &Op) -> Result<(), Failure> {
        if *op == Op::Compact {
            store.compact()?;
            return Ok(());
        }
        let store = &*store;
        let change = || match *op {
            Op::Put(key, value) => self.put(store, key, value),
            Op::Remove(key) => self.remove(store, key),
            op => self.change(store, op),
        };
        // A thread of its own for each operation: the fence of a later operation does not cover flushes of an earlier one.
        match self.shape {
            Shape::LongRecords => {
                std::thread::scope(|scope| scope.spawn(change).join().expect("the operation does not panic"))
            }
            _ => change(),
        }
    }

    fn observe(&self, store: &SimStore) -> Result<BTreeMap<u8, u8>, Failure> {
        let report = store.check().unwrap();
        if !report.is_sound() {
            return Err(Failure::Unsound(format!("{report:?}")));
        }
        if store.heap().blocks() != store.blocks() {
            return Err(Failure::Unsound("blocks are leaked".to_owned()));
        }
        let map = self.read(store)?;
        let len = store.table_len("t")?.unwrap_or_default();
        if len == map.len() as u64 {
            Ok(map)
        } else {
            Err(Failure::Unsound(format!("length {len} of {map:?}")))
        }
    }
}

impl Oracle for Small {
    fn initial(&self) -> BTreeMap<u8, u8> {
        self.keys.iter().map(|key| (*key, *key)).collect()
    }

    fn expect(&self, map: &mut BTreeMap<u8, u8>, op: &Op) {
        match *op {
            Op::Put(key, value) => drop(map.insert(key, value)),
            Op::Remove(key) => drop(map.remove(&key)),
            Op::Swap(key, old, new) => {
                if map.get(&key).copied().unwrap_or(0) == old {
                    match new {
                        0 => drop(map.remove(&key)),
                        new => drop(map.insert(key, new)),
                    }
                }
            }
            Op::PopFirst => drop(map.pop_first()),
            Op::PopLast => drop(map.pop_last()),
            Op::RetainEven => map.retain(|key, _| key.is_multiple_of(2)),
            Op::Compact => (),
        }
    }
}

/// A store to which operations were applied before.
#[derive(Clone, Copy, Debug)]
struct After(Small, &'static [Op]);

impl Subject for After {
    type Op = Op;
    type State = BTreeMap<u8, u8>;
    type Store = SimStore;
    type Error = Failure;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<SimStore, Failure> {
        let mut store = self.0.create(pmem)?;
        self.1.iter().try_for_each(|op| self.0.apply(&mut store, op))?;
        Ok(store)
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<SimStore, Failure> {
        self.0.open(pmem)
    }

    fn apply(&self, store: &mut SimStore, op: &Op) -> Result<(), Failure> {
        self.0.apply(store, op)
    }

    fn observe(&self, store: &SimStore) -> Result<BTreeMap<u8, u8>, Failure> {
        self.0.observe(store)
    }
}

impl Oracle for After {
    fn initial(&self) -> BTreeMap<u8, u8> {
        let mut map = self.0.initial();
        self.1.iter().for_each(|op| self.0.expect(&mut map, op));
        map
    }

    fn expect(&self, map: &mut BTreeMap<u8, u8>, op: &Op) {
        self.0.expect(map, op);
    }
}

/// The operations of a test: they insert at both ends and in the middle, update, and remove.
const OPS: [Op; 5] = [Op::Put(2, 20), Op::Put(3, 30), Op::Put(9, 90), Op::Remove(2), Op::Remove(3)];

/// Operations that depend on the table's contents. The tables have the keys 3 and 5, or more.
const CONDITIONAL_OPS: [Op; 6] = [
    Op::Swap(3, 3, 30),
    Op::Swap(3, 4, 30),
    Op::Swap(4, 0, 40),
    Op::Swap(5, 5, 0),
    Op::PopFirst,
    Op::PopLast,
];

/// The bound of choices at each crash point: `PM_CRASH_CHOICES`, by default enough for all but the splits of long keys. Tests of longer runs try a fixed
/// part of it.
fn choices_per_point() -> u64 {
    std::env::var("PM_CRASH_CHOICES").map_or(1 << 9, |count| count.parse().expect("a number"))
}

/// Every operation on tables with these numbers of keys, crashed everywhere: nodes of four slots, so one of these insertions splits a leaf. Recoveries
/// are crashed at few choices; for all of them see `recovery_of_torn_entries_is_durable`.
fn check_single(shape: Shape) {
    check_each(shape, &OPS);
}

fn check_conditional(shape: Shape) {
    check_each(shape, &CONDITIONAL_OPS);
}

fn check_each(shape: Shape, ops: &[Op]) {
    for keys in [&[3_u8, 5][..], &[3, 5, 7]] {
        let small = Small { shape, keys, empty_leaves: 1 };
        for model in [Model::Px86Line, Model::Eadr, Model::Page] {
            let explorer = Explorer::new(model)
                .choices_per_point(choices_per_point())
                .crashes(1)
                .nested_choices_per_point(1);
            let sequences = Sequences::new(small, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0);
            for op in ops {
                let coverage = sequences.check(&[*op]);
                // A transaction of the heap has many choices: see `extents_return_to_the_heap`.
                let is_bounded = keys.len() == 3 || shape == Shape::Lengths;
                assert!(coverage.levels[0].is_exhaustive || is_bounded, "{small:?} {model}: {coverage}");
            }
        }
    }
}

/// Every operation, killed everywhere; a second process goes on, and is crashed.
fn check_killed(shape: Shape) {
    let small = Small { shape, keys: &[3, 5, 7], empty_leaves: 1 };
    let explorer =
        Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(choices_per_point() / 64);
    let sequences = Sequences::new(small, REGION_BYTES).unwrap().explorer(explorer);
    sequences.crash_onward(0).check_all(&OPS, 1);
}

/// Every pair of operations, and crashes inside recovery, up to a bound of choices.
fn check_pairs(shape: Shape) {
    let small = Small { shape, keys: &[3, 5], empty_leaves: 1 };
    let explorer = Explorer::new(Model::Px86Line)
        .choices_per_point(choices_per_point() / 128)
        .nested_choices_per_point(1);
    Sequences::new(small, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0).check_all(&OPS, 2);
}

/// Random sequences of operations on keys of a tree with several leaves. `PM_CRASH_SEQUENCES` sets their number.
fn check_random(shape: Shape) {
    let count = std::env::var("PM_CRASH_SEQUENCES").map_or(5, |count| count.parse().expect("a number"));
    let small = Small { shape, keys: &[2, 3, 5, 7, 11], empty_leaves: 1 };
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(8).nested_choices_per_point(2);
    let sequences = Sequences::new(small, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0);
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed);
        let op = |random: &mut fastrand::Rng| match random.u32(..7) {
            0 => Op::Compact,
            1..3 => Op::Remove(random.u8(..16)),
            _ => Op::Put(random.u8(..16), random.u8(..)),
        };
        let ops: Vec<Op> = (0..6).map(|_| op(&mut random)).collect();
        sequences.check(&ops);
    }
}

/// A torn entry is found by a recovery, which crashes too.
#[test]
fn recovery_of_torn_entries_is_durable() {
    let small = Small { shape: Shape::Records, keys: &[3, 5], empty_leaves: 1 };
    let explorer = Explorer::new(Model::Px86Line).choices_per_point(64).nested_choices_per_point(64);
    let sequences = Sequences::new(small, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0);
    sequences.check(&[Op::Put(2, 20)]);
}

/// Entries are removed one by one, each durably, in the order of their keys: a crash leaves the last ones.
#[test]
fn retain_removes_entries_in_order() {
    let small = Small { shape: Shape::Inline, keys: &[1, 2, 3, 5, 6], empty_leaves: 1 };
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    drop(small.create(Arc::clone(&sim)).unwrap());
    let operation = |run: &Run<u8>| {
        let store = small.open(Arc::clone(run.pmem())).unwrap();
        small.change(&store, Op::RetainEven).unwrap();
        run.ack(1);
        std::mem::forget(store);
    };
    let check = |crash: &Crash<u8>| {
        let store = small.open(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        let keys: Vec<u8> = small.observe(&store).map_err(|error| error.to_string())?.into_keys().collect();
        let is_acked = !crash.acked().is_empty();
        match keys.as_slice() {
            [2, 6] => Ok(()),
            [1, 2, 3, 5, 6] | [2, 3, 5, 6] | [2, 5, 6] if !is_acked => Ok(()),
            keys => Err(format!("{keys:?} after {is_acked}")),
        }
    };
    let explorer = Explorer::new(Model::Px86Line).crashes(1).kills(1).choices_per_point(1 << 8);
    explorer.check(&sim.to_image(), operation, check);
}

/// A table is created and gets an entry. After each crash the table is absent, empty or complete, and can be created and used.
#[test]
fn creation_of_tables_is_atomic() {
    let small = Small { shape: Shape::Inline, keys: &[], empty_leaves: 1 };
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    drop(Store::format(any(Arc::clone(&sim)), &small.options()).unwrap());
    let operation = |run: &Run<u8>| {
        let store = Store::attach(any(Arc::clone(run.pmem())), &small.options()).unwrap();
        for (number, name) in (1..).step_by(2).zip(["first", "second"]) {
            let table = store.table::<u64, u64>(name).unwrap();
            run.ack(number);
            table.insert(7, 70).unwrap();
            run.ack(number + 1);
        }
        // As after a kill: a close would flush what no operation has flushed.
        std::mem::forget(store);
    };
    let check = |crash: &Crash<u8>| {
        let store = small.open(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        let acked = crash.acked().last().copied().unwrap_or_default();
        for (number, name) in (1..).step_by(2).zip(["first", "second"]) {
            let found = store.open_table::<u64, u64>(name).map_err(|error| error.to_string())?;
            if found.is_none() && acked >= number {
                return Err(format!("table {name} is lost"));
            }
            let table = store.table::<u64, u64>(name).map_err(|error| error.to_string())?;
            let value = table.get(7).map_err(|error| error.to_string())?;
            match value.map(|value| value.value()) {
                Some(70) => (),
                None if acked <= number => (),
                value => return Err(format!("{value:?} in {name} after {acked}")),
            }
            table.insert(8, 80).map_err(|error| error.to_string())?;
            table.remove(8).map_err(|error| error.to_string())?;
        }
        if store.check().unwrap().is_sound() { Ok(()) } else { Err("unsound".to_owned()) }
    };
    let explorer = Explorer::new(Model::Px86Line).crashes(1).kills(1).choices_per_point(1 << 8);
    explorer.check(&sim.to_image(), operation, check);
}

/// Records of entries that a split has moved are reused soon after it. The entries that are left behind must not be taken for corrupted ones.
#[test]
fn records_of_moved_entries_are_reused() {
    // The last key is in a leaf of its own, so that the split below adds no inner node, whose fence would cover the cleared entries too.
    let small = Small { shape: Shape::LongRecords, keys: &[3, 5, 7, 20], empty_leaves: 1 };
    // The first operation moves 5 and 7. An extent has four records: the first one is full before it, and the second one after three more operations.
    // The last operations reuse the first records of 7 and of 5.
    let updates = [Op::Put(8, 80), Op::Put(7, 70), Op::Put(5, 50), Op::Put(7, 71), Op::Put(5, 51)];
    let ops = [&[Op::Put(4, 40)], &updates[..]].concat();
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(6).nested_choices_per_point(1);
    let sequences = Sequences::new(small, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0);
    sequences.further(&ops, 0).check(&ops);
}

/// Nine records of 900 bytes, in three extents, are removed. The space of two extents serves records of other lengths, and their blocks the next ones.
#[test]
fn extents_return_to_the_heap() {
    const OPS: [Op; 7] = [
        Op::Put(2, 4),
        Op::Put(4, 2),
        Op::Put(4, 3),
        Op::Remove(4),
        Op::Put(6, 3),
        Op::Put(2, 5),
        Op::Put(6, 9),
    ];
    const KEYS: &[u8] = &[1, 5, 9, 13, 17, 21, 25, 29, 33];
    const REMOVED: [Op; 9] = [
        Op::Remove(1),
        Op::Remove(5),
        Op::Remove(9),
        Op::Remove(13),
        Op::Remove(17),
        Op::Remove(21),
        Op::Remove(25),
        Op::Remove(29),
        Op::Remove(33),
    ];
    let small = Small { shape: Shape::Lengths, keys: KEYS, empty_leaves: 1 };
    let emptied = || Sequences::new(After(small, &REMOVED), 128 << 10).unwrap();
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(8).nested_choices_per_point(1);
    emptied().explorer(explorer.clone()).crash_onward(0).check(&OPS);
    emptied().explorer(explorer.kills(1).choices_per_point(2)).crash_onward(0).check(&OPS);
    // Each step by itself, with more choices.
    for step in 0..OPS.len() {
        let before: Vec<Op> = REMOVED.iter().chain(&OPS[..step]).copied().collect();
        for model in [Model::Px86Line, Model::Eadr, Model::Page] {
            let explorer = Explorer::new(model).choices_per_point(choices_per_point() / 16).crashes(1);
            let sequences = Sequences::new(After(small, before.clone().leak()), 128 << 10).unwrap();
            sequences.explorer(explorer.nested_choices_per_point(1)).crash_onward(0).check(&[OPS[step]]);
        }
    }
}

/// A leaf is split and emptied, unlinked, and its space is used again: what the split has left in the left half does not come back.
fn check_compaction(shape: Shape) {
    let ops = [
        Op::Put(4, 40),
        Op::Remove(5),
        Op::Remove(7),
        Op::Compact,
        Op::Put(6, 60),
        Op::Put(8, 80),
        Op::Put(9, 90),
        Op::Put(10, 100),
        Op::Remove(3),
    ];
    for keys in [&[3, 5, 7][..], &[3, 5, 7, 20, 21, 22, 23]] {
        let small = Small { shape, keys, empty_leaves: u32::MAX };
        let explorer =
            Explorer::new(Model::Px86Line).crashes(1).choices_per_point(8).nested_choices_per_point(1);
        let sequences = Sequences::new(small, REGION_BYTES).unwrap();
        sequences.explorer(explorer.clone()).crash_onward(0).check(&ops);
        let sequences = Sequences::new(small, REGION_BYTES).unwrap();
        sequences.explorer(explorer.kills(1).choices_per_point(2)).crash_onward(0).check(&ops);
    }
}

#[test]
fn compaction_of_words_keeps_entries() {
    check_compaction(Shape::Inline);
}

#[test]
fn compaction_of_records_keeps_entries() {
    check_compaction(Shape::Records);
}

#[test]
fn compaction_of_long_keys_keeps_entries() {
    check_compaction(Shape::LongKeys);
}

/// Changes that leave a leaf empty, which is unlinked, each by itself and crashed everywhere: a removal, a pop at either end, a removal of all odd keys. What
/// follows in the sequences inserts keys of the range of the unlinked leaf, and splits leaves, so that its space is used again.
fn check_unlink(shape: Shape) {
    // The leaves are [1, 3], [5, 7] and [9, 11]; with 2 or 6 in addition, the left one of an emptied one is more than half full.
    const KEYS: &[u8] = &[1, 3, 5, 7, 9, 11];
    let small = Small { shape, keys: KEYS, empty_leaves: 1 };
    let steps: [(&[Op], Op); 6] = [
        (&[Op::Remove(5)], Op::Remove(7)),
        (&[Op::Remove(9)], Op::Remove(11)),
        (&[Op::PopFirst, Op::PopFirst, Op::PopFirst], Op::PopFirst),
        (&[Op::PopLast], Op::PopLast),
        (&[Op::PopLast, Op::PopLast, Op::PopLast], Op::PopLast),
        (&[Op::Remove(11), Op::Put(6, 60), Op::Remove(7), Op::Remove(6)], Op::Remove(5)),
    ];
    for (before, step) in steps {
        let after = After(small, before);
        for model in [Model::Px86Line, Model::Eadr, Model::Page] {
            let explorer = Explorer::new(model).choices_per_point(choices_per_point()).crashes(1);
            let sequences = Sequences::new(after, REGION_BYTES).unwrap();
            sequences.explorer(explorer.nested_choices_per_point(1)).crash_onward(0).check(&[step]);
        }
        let reuse = [Op::Put(6, 61), Op::Put(12, 120), Op::Put(13, 130), Op::Put(4, 40), Op::Put(2, 20)];
        let ops: Vec<Op> = [step].into_iter().chain(reuse).collect();
        let explorer =
            Explorer::new(Model::Px86Line).crashes(1).choices_per_point(8).nested_choices_per_point(1);
        let sequences = || Sequences::new(after, REGION_BYTES).unwrap();
        sequences().explorer(explorer.clone()).crash_onward(0).check(&ops);
        sequences().explorer(explorer.kills(1).choices_per_point(2)).crash_onward(0).check(&ops);
    }
}

/// All leaves of a tree with three levels are emptied from one end, so that inner nodes go with their last leaves. Then the tree grows again.
#[test]
fn inner_nodes_are_unlinked() {
    const KEYS: [u8; 30] = ascending();
    const POPS: [[Op; 30]; 2] = [[Op::PopFirst; 30], [Op::PopLast; 30]];
    const AGAIN: [Op; 4] = [Op::Put(1, 10), Op::Put(2, 20), Op::Put(3, 30), Op::Put(4, 40)];
    for shape in [Shape::Inline, Shape::LongKeys] {
        let small = Small { shape, keys: &KEYS, empty_leaves: 1 };
        let explorer =
            Explorer::new(Model::Px86Line).crashes(1).choices_per_point(4).nested_choices_per_point(1);
        for pops in &POPS {
            for start in (0..30).step_by(10) {
                let sequences = Sequences::new(After(small, &pops[..start]), REGION_BYTES).unwrap();
                let ops: Vec<Op> = pops[start..start + 10].iter().chain(&AGAIN).copied().collect();
                sequences.explorer(explorer.clone()).crash_onward(0).check(&ops);
            }
        }
    }
}

/// Ascending keys.
const fn ascending<const N: usize>() -> [u8; N] {
    let mut keys = [0; N];
    let (mut at, mut key) = (0, 1);
    while at < N {
        keys[at] = key;
        (at, key) = (at + 1, key + 2);
    }
    keys
}

/// An insertion that splits a leaf and an inner node. An inner node has up to six children here, and a leaf up to three entries.
#[test]
fn split_of_inner_node_is_atomic() {
    const KEYS: [u8; 18] = ascending();
    for shape in [Shape::Inline, Shape::LongKeys] {
        let small = Small { shape, keys: &KEYS, empty_leaves: 1 };
        let explorer =
            Explorer::new(Model::Px86Line).crashes(1).choices_per_point(64).nested_choices_per_point(4);
        let sequences = Sequences::new(small, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0);
        for op in [Op::Put(37, 1), Op::Put(8, 1)] {
            sequences.check(&[op]);
        }
    }
}

/// Searches after a crash find the leaves by the hint nodes, and not by steps from leaf to leaf or by a new index. The bound of the steps allows for what
/// the operation in progress has not posted.
#[test]
fn index_is_durable() {
    let small = Small { shape: Shape::Records, keys: &[], empty_leaves: 1 };
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    drop(Store::format(any(Arc::clone(&sim)), &small.options()).unwrap());
    let operation = |run: &Run<u8>| {
        let store = Store::attach(any(Arc::clone(run.pmem())), &small.options()).unwrap();
        for number in 1..=60_u8 {
            small.put(&store, number.wrapping_mul(89), number).unwrap();
            run.ack(number);
        }
        std::mem::forget(store);
    };
    let check = |crash: &Crash<u8>| {
        let store = small.open(Arc::clone(crash.pmem())).map_err(|error| error.to_string())?;
        let acked = crash.acked().last().copied().unwrap_or_default();
        let table = store.open_table::<u64, [u8; 24]>("t").map_err(|error| error.to_string())?;
        for number in 1..=acked {
            let table = table.as_ref().ok_or("the table is lost")?;
            let value = table.get(number.wrapping_mul(89).into()).map_err(|error| error.to_string())?;
            if value.map(|value| value.value()) != Some([number; 24]) {
                return Err(format!("{number} is lost"));
            }
        }
        // The catalogue has no hint nodes, so each open makes its index.
        let catalogues = u64::from(table.is_some() || store.new_indexes() > 0);
        match (store.steps_right(), store.new_indexes() - catalogues) {
            (0..=40, 0) => Ok(()),
            (steps, indexes) => Err(format!("{steps} steps and {indexes} new indexes for {acked} keys")),
        }
    };
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(32);
    explorer.check(&sim.to_image(), operation, check);
}

macro_rules! crash_tests {
    ($($name:ident: $check:ident($shape:ident);)*) => {$(
        #[test]
        fn $name() {
            $check(Shape::$shape);
        }
    )*};
}

crash_tests! {
    inline_operations_are_atomic: check_single(Inline);
    record_operations_are_atomic: check_single(Records);
    long_key_operations_are_atomic: check_single(LongKeys);
    conditional_inline_operations_are_atomic: check_conditional(Inline);
    conditional_record_operations_are_atomic: check_conditional(Records);
    conditional_long_key_operations_are_atomic: check_conditional(LongKeys);
    operations_on_values_of_all_lengths_are_atomic: check_single(Lengths);
    killed_operations_on_values_of_all_lengths_are_durable: check_killed(Lengths);
    pairs_of_operations_on_values_of_all_lengths: check_pairs(Lengths);
    random_operations_on_values_of_all_lengths: check_random(Lengths);
    unlink_of_inline_entries_is_atomic: check_unlink(Inline);
    unlink_of_entries_of_all_lengths_is_atomic: check_unlink(Lengths);
    unlink_of_long_keys_is_atomic: check_unlink(LongKeys);
    killed_inline_operations_are_durable: check_killed(Inline);
    killed_record_operations_are_durable: check_killed(Records);
    killed_long_key_operations_are_durable: check_killed(LongKeys);
    pairs_of_inline_operations: check_pairs(Inline);
    pairs_of_record_operations: check_pairs(Records);
    pairs_of_long_key_operations: check_pairs(LongKeys);
    random_inline_operations: check_random(Inline);
    random_record_operations: check_random(Records);
    random_long_key_operations: check_random(LongKeys);
}
